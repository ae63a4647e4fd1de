"""The server's end and what holds it up: all that is under way is told; a second signal counts."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import phloem as ph
from phloem.grammar.analyser import default_analyser
from phloem.programs.testing import ScriptedBackend
from phloem.server.http.engine import Engine
from phloem.server.http.serve import SAME_SIGNAL_S, uvicorn_server
from phloem.server.http.state import make_state
from phloem.server.programs.catalog import Catalog
from phloem.server.settings import load_settings
from tests.server.harness import chunks, serving
from tests.server.programs.samples import PROGRAMS


def test_requests_that_are_cut_off_are_told() -> None:
    """When the server's patience ends, a whole reply is a 503 that may be tried again, a stream
    that has begun ends with the error and [DONE], a run's with its last event."""
    said = 0

    async def gate() -> None:
        nonlocal said
        said += 1
        if said % 3 == 0:
            await asyncio.Event().wait()

    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"stream": True}),
        ("/v1/chat/completions", {}),
        ("/v1/programs/story/runs", {"args": {"topic": "x"}}),
    ]
    with ThreadPoolExecutor() as pool:
        backend = ScriptedBackend(lambda *_: "a long answer", gate=gate)
        with serving(backend, PROGRAMS, shutdown_s=0) as server:
            replies = []
            for path, body in asked:
                content = body if "programs" in path else server.chat_body(**body)
                url = server.url + path
                replies.append(pool.submit(httpx.post, url, json=content, timeout=60))
                while said < 3 * len(replies):
                    time.sleep(0.005)
        stream, whole, run = (reply.result() for reply in replies)
    assert stream.status_code == 200
    assert chunks(stream.text)[-1]["error"]["code"] == "overloaded"
    for reply in (whole, run):
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert reply.json()["error"]["message"] == "the server is stopping"


let_go = threading.Event()


@ph.function
def holding(s: ph.State) -> str:
    """A program that computes for as long as it is let."""
    s += "x"
    let_go.wait(30)
    return "done"


def test_a_program_that_holds_up_all_others_is_told() -> None:
    """While a program's own code holds the loop of all runs /ready and then /health say so, at
    once; once it goes on all is well."""

    def wait(path: str, status: int) -> Any:
        until = time.monotonic() + 20
        while (reply := server.client.get(path)).status_code != status:
            assert time.monotonic() < until, reply.text
            time.sleep(0.02)
        return reply.json()

    with serving(ScriptedBackend(["x"]), [holding], engine_stuck_s=0.2) as server:
        run = server.run("holding", background=True).json()["id"]
        try:
            assert wait("/health", 503) == {"status": "held up"}
            assert wait("/ready", 503)["runs"] == "held up"
        finally:
            let_go.set()
        assert wait("/ready", 200)["runs"] == "ok"
        assert wait("/health", 200) == {"status": "ok"}
        assert server.settled(run)["value"] == "done"


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_server_at_once(kind: signal.Signals) -> None:
    """The first asks for an end, a copy of it is the same, a later one forces it."""
    state = make_state(load_settings(), Engine(ScriptedBackend), default_analyser())
    server = uvicorn_server(state, Catalog([]))
    for _ in range(2):
        server.handle_exit(kind, None)
        assert (server.should_exit, server.force_exit) == (True, False)
    server.asked_at -= 2 * SAME_SIGNAL_S
    server.handle_exit(kind, None)
    assert server.force_exit
