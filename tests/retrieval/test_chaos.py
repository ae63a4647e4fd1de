"""A bad day of a server: every search ends, rightly or with its cause."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from phloem.errors import RetrievalError
from phloem.retrieval import Document, ElasticsearchRetriever, Query

TIMEOUT_S = 1.0


@pytest.mark.server
@pytest.mark.parametrize(
    ("searches", "frozen_s"), [(80, 1.5), pytest.param(1_000, 5.0, marks=pytest.mark.slow)]
)
async def test_failures_stalls_a_freeze_and_a_restart(
    own_server: Any, scripted: Any, es: Any, searches: int, frozen_s: float
) -> None:
    """With 10% of calls failing, 5% stalling, the server frozen once and restarted once, every
    search gives the right document or a RetrievalError that names address and cause, and none
    lasts longer than its timeout by more than scheduling does."""
    rng = random.Random(9)

    async def answer(request: Any, _: Any) -> bytes | None:
        luck = rng.random() if "_search" in request.path else 1.0
        if luck < 0.05:
            return None  # the connection breaks
        if luck < 0.10:
            return es.reply({"error": {"reason": "injected failure"}}, 503)
        if luck < 0.15:
            await asyncio.sleep(4 * TIMEOUT_S)
        return await asyncio.to_thread(forward, own_server.url, request, es.reply)

    direct = ElasticsearchRetriever(own_server.url)
    await direct.add([Document(f"d{n}", f"marker{n} and common words") for n in range(40)])
    await direct.aclose()
    retriever = ElasticsearchRetriever(scripted(answer).url, timeout=TIMEOUT_S, retries=1)
    outcomes: Counter[str] = Counter()
    longest = 0.0
    todo = iter(range(searches))
    reached = {int(searches * share): asyncio.Event() for share in (0.3, 0.6)}

    async def run() -> None:
        nonlocal longest
        for n in todo:
            if n in reached:
                reached[n].set()
            began = time.monotonic()
            try:
                hits = await retriever.search(Query(f"marker{n % 40}", k=1))
            except RetrievalError as error:
                named = "127.0.0.1" in error.message
                outcomes[type(error).__name__ if named else f"unnamed: {error}"] += 1
            else:
                assert [hit.id for hit in hits] == [f"d{n % 40}"]
                outcomes["right"] += 1
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.02)

    async def trouble() -> None:
        freeze, restart = reached.values()
        await freeze.wait()
        pid = own_server.pid()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(frozen_s)
        os.kill(pid, signal.SIGCONT)
        await restart.wait()
        await asyncio.to_thread(own_server.stop)
        await asyncio.to_thread(own_server.start)

    await asyncio.gather(trouble(), *(run() for _ in range(8)))
    rng.random = lambda: 1.0  # type: ignore[method-assign] # the day is over
    await asyncio.sleep(retriever.suspended_s)
    assert len(await retriever.search(Query("marker1", k=1))) == 1
    await retriever.aclose()
    assert sum(outcomes.values()) == searches
    assert outcomes["right"] > searches * 0.1, outcomes
    assert set(outcomes) <= {"right", "RetrievalTimeout", "RetrievalUnavailable"}, outcomes
    assert longest < 4 * TIMEOUT_S, longest


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
