"""The server's engine while it loads: it can be given up at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from phloem.programs.protocol import Capabilities
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.server.http.engine import Engine


async def test_a_load_ends_with_the_server() -> None:
    """Stopping neither waits for a model that loads nor leaves its process behind."""
    backend = HostedBackend(Loader("phloem.runtime.model.tiny:tiny_model"))
    engine = Engine(lambda: backend)
    engine.start()
    while (pid := backend.supervisor.pid) is None:  # noqa: ASYNC110 - another thread's doing
        await asyncio.sleep(0.005)
    # It will never load.
    os.kill(pid, signal.SIGSTOP)
    await engine.stop()
    assert not engine.loaded
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_is_made_while_the_server_stops_is_not_loaded() -> None:
    """A backend whose maker takes its time is closed as soon as it is there."""
    making, stopping = threading.Event(), threading.Event()
    told: list[str] = []

    class Watched(ScriptedBackend):
        @property
        def capabilities(self) -> Capabilities:
            told.append("loaded")
            return super().capabilities

        async def aclose(self) -> None:
            told.append("closed")

    def make() -> Watched:
        making.set()
        stopping.wait()
        return Watched([])

    engine = Engine(make)
    engine.start()
    await asyncio.to_thread(making.wait)
    stop = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    stopping.set()
    await stop
    assert told == ["closed"]
    assert not engine.loaded


async def test_a_load_that_can_not_be_ended_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that loads in the server's own process keeps it from ending for a moment only."""
    monkeypatch.setattr("phloem.server.http.engine.GIVE_UP_S", 0.05)
    making, loads = threading.Event(), threading.Event()

    def make() -> ScriptedBackend:
        making.set()
        loads.wait(30)
        return ScriptedBackend([])

    engine = Engine(make)
    engine.start()
    await asyncio.to_thread(making.wait)
    try:
        await engine.stop()
        assert not engine.loaded
    finally:
        loads.set()
