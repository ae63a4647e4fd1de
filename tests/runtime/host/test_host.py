"""The engine in a child process: what crosses the border, and what happens when the child ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from phloem.errors import (
    Cancelled,
    ConfigError,
    ConstraintError,
    DeadlineExceeded,
    EngineRestarted,
    EngineUnavailable,
    ModelNotFound,
    PromptTooLong,
)
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, Session, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.host import supervisor
from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.runtime.host.supervisor import Limits
from phloem.runtime.model.tiny import tiny_model

FAULTY = "tests.runtime.host.faulty"
TINY = Loader("phloem.runtime.model.tiny:tiny_model")
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)

Make = Callable[..., HostedBackend]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes backends that are closed at the end."""
    made: list[HostedBackend] = []

    def making(loader: Loader = TINY, **settings) -> HostedBackend:
        made.append(HostedBackend(loader, **settings))
        return made[-1]

    yield making
    for backend in made:
        await backend.aclose()


class Faulty:
    """A backend on the faulty model, and the file that asks for a fault."""

    def __init__(self, folder: Path) -> None:
        self.wanted = folder / "wanted"
        loader = Loader(f"{FAULTY}:faulty_model", {"wanted": str(self.wanted)})
        limits = Limits(stuck_s=5.0, spare_bytes=32 << 20, stable_s=0.0)
        self.backend = HostedBackend(loader, limits=limits)

    async def session(self, text: str, **options) -> Session:
        session = await self.backend.open("s", **options)
        session.append([Text(text)])
        return session

    async def lost(self, task: Awaitable[object], reason: str) -> EngineRestarted:
        """The error of a step whose process ends for `reason`, once another one is ready."""
        with pytest.raises(EngineRestarted) as lost:
            await task
        assert lost.value.details["reason"] == reason
        await until(lambda: self.backend.state == "ready")
        assert self.backend.supervisor.restarts[reason] == 1
        return lost.value


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Iterator[Faulty]:
    """One for all tests that need no fresh one: each fault costs a start, which takes seconds."""
    made = Faulty(tmp_path_factory.mktemp("faulty"))
    yield made
    made.backend.supervisor.close()


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that is sure to happen."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def collect(session: Session, params=GREEDY, constraint=None) -> StepResult:
    result = [item async for item in session.generate(params, constraint)][-1]
    assert isinstance(result, StepResult)
    return result


async def begun(session: Session) -> asyncio.Task:
    """A long step, once its first token is here."""
    started = asyncio.Event()

    async def read():
        async for _ in session.generate(LONG):
            started.set()

    task = asyncio.ensure_future(read())
    await asyncio.wait({task, asyncio.ensure_future(started.wait())}, return_when="FIRST_COMPLETED")
    assert not task.done(), task
    return task


async def expected(*texts: str) -> list[str]:
    """What an engine that never ends says to the texts, one step after each."""
    backend = EmbeddedBackend(tiny_model())
    session = await backend.open("s")
    found = []
    for text in texts:
        session.append([Text(text)])
        found.append((await collect(session)).text)
    await backend.aclose()
    return found


async def test_errors_cross_the_border_whole(faulty):
    """An error of the engine has the class, hint and details here that it has there."""
    session = await faulty.session("Hello")
    with pytest.raises(PromptTooLong, match="limit is 4096") as too_long:
        await collect(session, SamplingParams(max_tokens=5000))
    assert too_long.value.hint
    assert too_long.value.details["requested_tokens"] == 5000
    with pytest.raises(ConstraintError):
        await collect(session, GREEDY, Constraint("regex", "(("))
    with pytest.raises(ConfigError, match="stop_regex"):
        await collect(session, SamplingParams(stop_regex=("((",)))
    with pytest.raises(ConfigError, match="surrogate"):
        await collect(session, SamplingParams(stop=("\ud800",)))
    with pytest.raises(DeadlineExceeded):
        await collect(await faulty.session("Hello", deadline=time.monotonic() - 1))
    assert (await collect(session)).text == (await expected("Hello"))[0]


async def test_a_crash_costs_the_steps_that_ran_and_nothing_else(faulty):
    """Steps in flight raise EngineRestarted; sessions go on in the next process, token by token
    as if nothing had happened; constant prefixes are there; steps asked for meanwhile wait."""
    prefix = "A constant beginning of many words. "
    await faulty.backend.prefill([Text(prefix)])
    steady = await faulty.session("Once upon")
    first = await collect(steady)
    running = await begun(await faulty.session("A long story"))
    os.kill(faulty.backend.supervisor.pid, signal.SIGKILL)
    await until(lambda: faulty.backend.state == "restarting")
    steady.append([Text(" more")])
    second = asyncio.ensure_future(collect(steady))
    lost = await faulty.lost(running, "crashed")
    assert "killed by SIGKILL" in lost.message
    assert lost.retryable
    assert lost.details["retry_after_s"] >= 1
    assert [first.text, (await second).text] == await expected("Once upon", " more")
    assert (await second).usage.reused == 0
    pinned = await collect(await faulty.session(prefix + "And more"))
    assert pinned.usage.reused >= faulty.backend.count(prefix) - 2


async def test_a_process_that_hangs_is_replaced(faulty):
    """Without a sign of life it is killed. Steps are cancelled, and end at their deadlines,
    without its help."""
    running = await begun(await faulty.session("A long story"))
    other = await faulty.session("Another story")
    cancelled = await begun(other)
    bounded = await faulty.session("x", deadline=time.monotonic() + 0.5)
    faulty.wanted.write_text("hang")
    await until(lambda: not faulty.wanted.exists())
    with pytest.raises(DeadlineExceeded):
        await collect(bounded, LONG)
    await other.cancel()
    with pytest.raises(Cancelled):
        await cancelled
    await faulty.lost(running, "stuck")
    assert (await collect(await faulty.session("Hello"))).text == (await expected("Hello"))[0]


async def test_a_process_that_leaks_is_replaced(faulty):
    """Memory beyond model, KV pool and the room allowed ends the process."""

    async def work():
        while True:
            faulty.wanted.write_text("leak")
            await collect(await faulty.session("A long story"))

    await faulty.lost(work(), "memory")
    faulty.wanted.unlink(missing_ok=True)
    assert (await collect(await faulty.session("Hello"))).text == (await expected("Hello"))[0]


async def test_counters_come_over(faulty):
    """What the engine counts is here a moment later, and so is its memory."""
    await collect(await faulty.session("Hello"))
    await until(lambda: faulty.backend.stats() is not None and faulty.backend.stats().finished)
    assert faulty.backend.stats().usage.generated >= 24
    assert faulty.backend.supervisor.memory > 0


async def test_collections_leave_the_loaded_engine_alone(faulty, caplog):
    """The child collects garbage, but never looks through what it has loaded."""
    session = await faulty.session("Hello")
    faulty.wanted.write_text("collector")
    await collect(session)
    await until(lambda: any("collects" in record.getMessage() for record in caplog.records))
    told = next(m for record in caplog.records if "collects" in (m := record.getMessage()))
    assert told.startswith("collects: True, frozen: ")
    assert int(told.rpartition(" ")[2]) > 100_000


async def test_signals_to_the_group_leave_the_child_to_its_parent(faulty):
    """SIGINT and SIGTERM, which reach a whole group, do not end the child."""
    await faulty.backend.start()
    pid = faulty.backend.supervisor.pid
    for one in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, one)
    await collect(await faulty.session("Hello"))
    assert faulty.backend.supervisor.pid == pid


async def test_loading_is_told_and_its_errors_reach_the_caller(make, caplog):
    """A loader's own error is raised as it is, hint and details too, at each call; what loading
    has come to is in the log. Closing ends what runs."""
    missing = make(Loader(f"{FAULTY}:missing_model"))
    with caplog.at_level(logging.INFO), pytest.raises(ModelNotFound, match="nowhere") as raised:
        await missing.open("s")
    assert raised.value.hint == "put one there"
    assert raised.value.details == {"looked_in": "/nowhere"}
    told = [record.getMessage() for record in caplog.records]
    phases = ("importing the engine", "loading the model")
    assert told == [f"the engine process is {phase}" for phase in phases]
    backend = make()
    session = await backend.open("s")
    session.append([Text("A long story")])
    running = await begun(session)
    await backend.aclose()
    with pytest.raises(Cancelled):
        await running
    with pytest.raises(Cancelled, match="closed"):
        await backend.start()
    assert backend.supervisor.pid is None


async def test_closing_ends_a_load(make, monkeypatch):
    """A process that still loads is not waited for, whatever it does; who waits for it gets
    `Cancelled`, and nothing is replaced."""
    monkeypatch.setattr(supervisor, "_STOP_S", 3600.0)
    backend = make()
    starting = asyncio.ensure_future(backend.start())
    await until(lambda: backend.supervisor.pid is not None)
    pid = backend.supervisor.pid
    os.kill(pid, signal.SIGSTOP)
    await backend.aclose()
    with pytest.raises(Cancelled, match="closed"):
        await starting
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert backend.supervisor.pid is None
    assert backend.supervisor.restarts.total() == 0


@pytest.mark.slow
async def test_every_way_not_to_start(make, caplog):
    """A process that dies loading is told with how it ended and its last words, each time anew;
    a model that is not there and settings that do not exist are named."""
    dying = make(Loader(f"{FAULTY}:dying_model"))
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="killed by SIGKILL while it loaded the model"):
            await dying.start()
    assert caplog.text.count("engine process: last words") == 2
    with pytest.raises(ModelNotFound, match="no-such-model"):
        _ = make("no-such-model").capabilities
    with pytest.raises(ConfigError, match="kv_tokenz"):
        await make(kv_tokenz=3).start()
    with pytest.raises(ConfigError, match="page_size"):
        await make(page_size=0).start()


@pytest.mark.slow
async def test_a_process_that_ends_soon_again_is_replaced_after_a_pause(make):
    """In the pause steps are refused at once; then all is well. A hard crash leaves its trace."""
    backend = make()
    session = await backend.open("s")
    session.append([Text("Hello")])
    for _ in range(2):
        await collect(session)
        os.kill(backend.supervisor.pid, signal.SIGSEGV)
        await until(lambda: backend.state != "ready")
    with pytest.raises(EngineRestarted, match="SIGSEGV"):
        await collect(session)
    await until(lambda: backend.state == "ready")
    await collect(session)


PARENT = f"""
import asyncio, sys
from phloem.runtime.host.backend import HostedBackend, Loader
backend = HostedBackend(Loader({TINY.target!r}))
asyncio.run(backend.start())
print(backend.supervisor.pid, "torch" in sys.modules, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("hangs", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_orphans(hangs):
    """The child ends with its parent, even if it hangs; the parent has no torch."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pid, torch = parent.stdout.readline().split()
        assert torch == b"False"
        if hangs:
            os.kill(int(pid), signal.SIGSTOP)
        parent.kill()
    end = time.monotonic() + 20
    while Path(f"/proc/{int(pid)}").exists() and not _zombie(int(pid)):
        assert time.monotonic() < end, "the child lives on"
        time.sleep(0.02)


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
