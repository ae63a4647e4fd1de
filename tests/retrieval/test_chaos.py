"""A bad day of a server: every search and every run ends, rightly or with its cause."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import phloem as ph
from phloem.errors import RetrievalError, where_of
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval import Document, ElasticsearchRetriever, Query

TIMEOUT_S = 1.0
DEADLINE_S = 6.0
DOCUMENTS = 40


@dataclass
class BadDay:
    """A server behind a proxy that breaks 5% of searches, answers 5% with 503 and stalls 5%; the
    server itself is frozen once and cleanly restarted once, as the work proceeds."""

    server: Any
    reply: Callable[..., bytes]
    frozen_s: float
    over: bool = False

    def __post_init__(self) -> None:
        self._rng = random.Random(9)

    async def answer(self, request: Any, _: Any) -> bytes | None:
        luck = self._rng.random() if "search" in request.path and not self.over else 1.0
        if luck < 0.05:
            return None  # the connection breaks
        if luck < 0.10:
            return self.reply({"error": {"reason": "injected failure"}}, 503)
        if luck < 0.15:
            await asyncio.sleep(4 * TIMEOUT_S)
        return await asyncio.to_thread(forward, self.server.url, request, self.reply)

    async def work(self, one: Callable[[int], Awaitable[None]], times: int, workers: int) -> None:
        """Do `one(n)` `times` times, several at once, while the server has its troubles."""
        freeze, restart = asyncio.Event(), asyncio.Event()
        reached = {int(times * 0.3): freeze, int(times * 0.6): restart}
        todo = iter(range(times))

        async def worker() -> None:
            for n in todo:
                if n in reached:
                    reached[n].set()
                await one(n)

        async def trouble() -> None:
            await freeze.wait()
            pid = self.server.pid()
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self.frozen_s)
            os.kill(pid, signal.SIGCONT)
            await restart.wait()
            await asyncio.to_thread(self.server.stop)
            await asyncio.to_thread(self.server.start)

        await asyncio.gather(trouble(), *(worker() for _ in range(workers)))
        self.over = True


@pytest.fixture
async def bad_day(own_server: Any, scripted: Any, es: Any) -> Any:
    """Makes a bad day of a server with `DOCUMENTS` documents; returns it and a retriever."""
    made: list[ElasticsearchRetriever] = []

    async def make(frozen_s: float, **options: Any) -> tuple[BadDay, ElasticsearchRetriever]:
        direct = ElasticsearchRetriever(own_server.url)
        words = [f"marker{n} and common words" for n in range(DOCUMENTS)]
        await direct.add([Document(f"d{n}", text) for n, text in enumerate(words)])
        await direct.aclose()
        day = BadDay(own_server, es.reply, frozen_s)
        made.append(ElasticsearchRetriever(scripted(day.answer).url, timeout=TIMEOUT_S, **options))
        return day, made[-1]

    yield make
    for retriever in made:
        await retriever.aclose()


@pytest.mark.server
@pytest.mark.parametrize(
    ("searches", "frozen_s"), [(80, 1.5), pytest.param(1_000, 5.0, marks=pytest.mark.slow)]
)
async def test_failures_stalls_a_freeze_and_a_restart(
    bad_day: Any, searches: int, frozen_s: float
) -> None:
    """With 10% of calls failing, 5% stalling, the server frozen once and restarted once, every
    search gives the right document or a RetrievalError that names address and cause, and none
    lasts longer than its timeout by more than scheduling does."""
    day, retriever = await bad_day(frozen_s, retries=1)
    outcomes: Counter[str] = Counter()
    longest = 0.0

    async def one(n: int) -> None:
        nonlocal longest
        began = time.monotonic()
        try:
            hits = await retriever.search(Query(f"marker{n % DOCUMENTS}", k=1))
        except RetrievalError as error:
            outcomes[_named(error)] += 1
        else:
            assert [hit.id for hit in hits] == [f"d{n % DOCUMENTS}"]
            outcomes["right"] += 1
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.02)

    await day.work(one, searches, workers=8)
    await asyncio.sleep(retriever.suspended_s)
    assert len(await retriever.search(Query("marker1", k=1))) == 1
    assert sum(outcomes.values()) == searches
    assert outcomes["right"] > searches * 0.1, outcomes
    assert set(outcomes) <= {"right", "RetrievalTimeout", "RetrievalUnavailable"}, outcomes
    assert longest < 4 * TIMEOUT_S, longest


@ph.function
def looked_up(s: ph.State, n: int) -> list[str]:
    """Finds two documents side by side, and says what they say."""
    forks = s.fork(2)
    for branch, marker in zip(forks, (n, n + 1), strict=True):
        docs = ph.retrieve(f"marker{marker % DOCUMENTS}", k=1)
        branch += ph.user(ph.passages(docs)) + ph.assistant(ph.gen("said", max_tokens=20))
    forks.join()
    return s["said"]


def repeat(prompt: str, *_: Any) -> str:
    """What the model of these runs says: the passage's first word."""
    return prompt.rsplit("[1] ", 1)[1].split(" ", maxsplit=1)[0]


@pytest.mark.server
@pytest.mark.parametrize(
    ("runs", "frozen_s"), [(60, 1.5), pytest.param(1_000, 5.0, marks=pytest.mark.slow)]
)
async def test_runs_of_a_program_on_a_bad_day(bad_day: Any, runs: int, frozen_s: float) -> None:
    """On such a day every run of a program that retrieves ends with its right value or with a
    RetrievalError that names cause and place, in time; none hangs, and nothing is left open."""
    day, retriever = await bad_day(frozen_s, retries=1)
    backend = ScriptedBackend(repeat)
    settings = {"backend": backend, "retriever": retriever, "deadline": DEADLINE_S}
    outcomes: Counter[str] = Counter()
    longest = 0.0

    async def one(n: int) -> None:
        nonlocal longest
        began = time.monotonic()
        try:
            state = await looked_up.arun(n, **settings)
        except RetrievalError as error:
            where = where_of(error)
            placed = where is not None and (where.program, where.node) == ("looked_up", PLACE)
            outcomes[_named(error) if placed else f"no place: {where}"] += 1
        else:
            wanted = [f"marker{n % DOCUMENTS}", f"marker{(n + 1) % DOCUMENTS}"]
            outcomes["right" if state.value == wanted else f"wrong: {state.value}"] += 1
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.02)

    await day.work(one, runs, workers=8)
    assert sum(outcomes.values()) == runs
    assert outcomes["right"] > runs * 0.1, outcomes
    assert set(outcomes) <= {"right", "RetrievalTimeout", "RetrievalUnavailable"}, outcomes
    assert longest < DEADLINE_S, longest
    assert backend.open_sessions == 0


PLACE = next(node.id for node in looked_up.graph.nodes.values() if node.kind == "retrieve")


def _named(error: RetrievalError) -> str:
    """The kind of `error`, if its message names the server."""
    return type(error).__name__ if "127.0.0.1" in error.message else f"unnamed: {error}"


def forward(url: str, request: Any, reply: Any) -> bytes:
    """The server's answer to `request`, or a 502 as a proxy gives it."""
    kind = "application/x-ndjson" if "msearch" in request.path else "application/json"
    onward = Request(
        url + request.path,
        data=request.body or None,
        method=request.method,
        headers={"content-type": kind},
    )
    try:
        with urlopen(onward, timeout=30) as response:
            return bytes(reply(response.read(), response.status))
    except HTTPError as error:
        return bytes(reply(error.read(), error.code))
    except OSError as error:
        return bytes(reply({"error": {"reason": f"bad gateway: {error}"}}, 502))
