"""Forks that share a prefix which no server has computed: one request computes it for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from phloem.errors import Cancelled, EngineError
from phloem.programs.protocol import Session, Text, Usage
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .canned import canned, reply, stream
from .tapped import Tap, tapped
from .test_sglang import GREEDY, MODEL, opened, run

WHOLE = replace(GREEDY, stream=False)
LAND = "Once upon a time in a land far away. " * 4
META = {"finish_reason": {"type": "length"}, "completion_tokens": 8, "cached_tokens": 0}
SAID = json.dumps({"text": "", "output_ids": [7] * 8, "meta_info": META})
SILENCE = b""
"""An answer that does not come."""
REFUSED = reply(400, '{"error": {"message": "no"}}')


class Stepping(NamedTuple):
    """Forks, their steps, and the requests that they have made."""

    forks: list[Session]
    steps: list[asyncio.Task[Any]]
    bodies: list[dict[str, Any]]


@pytest.fixture(scope="module")
def running() -> Iterator[Tap]:
    """One server for the module."""
    with tapped() as fake:
        yield fake


@pytest_asyncio.fixture
async def fake(running: Tap) -> AsyncIterator[Tap]:
    """The server, its notes of requests and its cache emptied."""
    running.requests.clear()
    yield running


@pytest_asyncio.fixture
async def backend(fake: Tap) -> AsyncIterator[RuntimeEndpoint]:
    """A backend on the server, which has computed nothing yet."""
    made = RuntimeEndpoint(fake.url, tokenizer=MODEL)
    await made.flush_cache()
    yield made
    await made.aclose()


async def usages(forks: list[Session]) -> list[Usage]:
    """What a step of each takes, all at once."""
    return [result.usage for _, result in await asyncio.gather(*(run(f, WHOLE) for f in forks))]


async def test_the_first_fork_computes_what_all_begin_with(
    backend: RuntimeEndpoint, fake: Tap
) -> None:
    """A request for each fork and none more; all but the first find the prefix in the cache."""
    forks = await (await opened(backend, LAND)).fork(3)
    assert fake.requests == []
    first, *others = await usages(forks)
    assert first.reused == 0
    assert [usage.prefilled for usage in others] == [1, 1]
    intervals = [body["sampling_params"].get("stream_interval") for body in fake.requests]
    assert intervals == [WHOLE.max_tokens, None, None]


async def test_forks_of_forks_compute_each_part_once(backend: RuntimeEndpoint) -> None:
    """A fork that is forked before its first step adds a beginning, and shares the older one."""
    outer = await (await opened(backend, LAND)).fork(2)
    for number, fork in enumerate(outer):
        fork.append([Text(f"The {number + 1}. way. " * 8, heal=False)])
    inner = [one for fork in outer for one in await fork.fork(2)]
    found = await usages(inner)
    size = backend.count(LAND)
    assert found[0].reused == 0
    assert [usage.prefilled for usage in found[1::2]] == [1, 1]
    assert size - 1 <= found[2].reused <= size + len("The ")


async def test_what_is_known_or_short_keeps_nobody_waiting(
    backend: RuntimeEndpoint, fake: Tap
) -> None:
    """Where another session has computed the prefix, or it is short, all forks go at once."""
    await run(await opened(backend, LAND))
    fake.requests.clear()
    for text in (LAND + "it rained", "Hello"):
        await usages(await (await opened(backend, text)).fork(2))
    assert not any("stream_interval" in body["sampling_params"] for body in fake.requests)


async def test_choices_are_scored_after_the_first_forks(backend: RuntimeEndpoint) -> None:
    """A score leads like a generation: the next one's prompts are cached."""
    forks = await (await opened(backend, LAND)).fork(2)
    first, other = await asyncio.gather(*(fork.score([" yes", " no"]) for fork in forks))
    assert first.usage.reused == 0
    assert other.usage.prefilled <= 1


def answer(body: dict[str, Any]) -> bytes:
    """A good answer, as it was asked for."""
    if not body["stream"]:
        return reply(200, SAID)
    return stream(SAID, "[DONE]") + b"0\r\n\r\n"


@asynccontextmanager
async def stepping(count: int, *answers: Any, hang: bool = False) -> AsyncIterator[Stepping]:
    """`count` forks, each in a step, of which the first has asked; the server answers so, and with
    `hang` leaves each connection open."""
    asked, left, bodies = asyncio.Event(), iter(answers), []

    def next_answer(body: dict[str, Any]) -> bytes:
        asked.set()
        bodies.append(body)
        return next(left)(body)

    async with canned({"/generate": next_answer}, hang=hang) as server:
        backend = RuntimeEndpoint(server.url, tokenizer=MODEL)
        forks = await (await opened(backend, LAND)).fork(count)
        steps = [asyncio.create_task(run(fork, WHOLE)) for fork in forks]
        await asked.wait()
        yield Stepping(forks, steps, bodies)
        await backend.aclose()


async def test_if_the_first_fork_fails_the_next_one_leads() -> None:
    """A refusal is that fork's own; only one of the others leads, and both come through."""
    async with stepping(3, lambda _: REFUSED, answer, answer) as now:
        with pytest.raises(EngineError):
            await now.steps[0]
        assert [(await step)[1].tokens for step in now.steps[1:]] == [(7,) * 8] * 2
        assert [body["stream"] for body in now.bodies] == [True, True, False]


async def test_if_the_first_fork_is_cancelled_the_next_one_leads() -> None:
    """A fork that gives up while others wait for it keeps nobody waiting."""
    async with stepping(2, lambda _: SILENCE, answer, hang=True) as now:
        await now.forks[0].cancel()
        with pytest.raises(Cancelled):
            await now.steps[0]
        _, result = await now.steps[1]
        assert result.tokens == (7,) * 8


async def test_a_fork_that_waits_can_be_cancelled_itself() -> None:
    """Who waits for the first fork's token waits no longer than its own step lasts."""
    async with stepping(2, lambda _: SILENCE, hang=True) as now:
        for fork, step in zip(now.forks[::-1], now.steps[::-1], strict=True):
            await fork.cancel()
            with pytest.raises(Cancelled):
                await step
        assert len(now.bodies) == 1
