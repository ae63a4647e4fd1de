"""A job from admission to the last token, counted once whatever happens to it.

What lives here: `generate` (a stream), `collect` (the whole) and `admitted` (work that only
needs a place), on the web server's loop.
What does not: the engine's side (`job.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from phloem.errors import DeadlineExceeded, PhloemError
from phloem.programs.protocol import StepResult, Usage
from phloem.server.error_map import outcome_of
from phloem.server.generation.job import Item, Job, candidates, coalesced, spelled
from phloem.server.http import bridge
from phloem.server.http.state import ServerState

__all__ = ["Account", "admitted", "collect", "generate", "placed", "preparing", "total_usage"]

log = structlog.get_logger("phloem.server")

T = TypeVar("T")


class Account:
    """What a request has used, and how it ended; counted when its `with` block ends."""

    def __init__(self, state: ServerState, kind: str, arrived: float, n: int = 1) -> None:
        self._metrics = state.metrics
        self._kind = kind
        self._arrived = arrived
        self._generated = 0
        self._results: dict[int, StepResult] = {}
        self._other = Usage()
        self._n = n

    def __enter__(self) -> Account:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        outcome = self._reason()
        if isinstance(error, Exception):
            outcome = outcome_of(error)
        elif error is not None:
            # CancelledError or GeneratorExit: the reader went away.
            outcome = "abort"
        self._metrics.count(self._kind, outcome, self._usage(), time.monotonic() - self._arrived)

    def see(self, item: Item) -> None:
        """Take note of one item."""
        index, happened = item
        if isinstance(happened, StepResult):
            self._results[index] = happened
            return
        if not self._generated and happened.tokens:
            seconds = time.monotonic() - self._arrived
            self._metrics.first_token.labels(self._kind).observe(seconds)
        self._generated += len(happened.tokens)

    def use(self, usage: Usage) -> None:
        """Take note of work that gave no items."""
        self._other += usage

    def _reason(self) -> str:
        cut = any(result.finish_reason == "length" for result in self._results.values())
        return "length" if cut else "stop"

    def _usage(self) -> Usage:
        usage = self._other + total_usage(self._results, self._n)
        # Candidates that were not finished have delivered tokens all the same.
        return replace(usage, generated=max(usage.generated, self._generated))


def total_usage(results: Mapping[int, StepResult], n: int) -> Usage:
    """The usage of all candidates, by number; what `n` candidates share counts once."""
    total = Usage()
    for number in sorted(results):
        usage = results[number].usage
        total += replace(usage, prompt=0, reused=0, prefilled=0) if number % n else usage
    return total


async def generate(
    state: ServerState, kind: str, job: Job, arrived: float
) -> AsyncGenerator[Item, None]:
    """The items of a job's candidates. Raises `Overloaded`, `DeadlineExceeded`, and what
    `candidates` raises. Closing it frees the place and ends the work within one step."""
    with Account(state, kind, arrived, job.n) as account:
        backend = state.engine.backend
        waiting = time.monotonic()
        deadline = min(arrived + state.settings.request_timeout_s, job.deadline or math.inf)
        lease = await state.gate.enter(max(0.0, deadline - waiting))
        state.metrics.queue_wait.observe(time.monotonic() - waiting)
        if state.settings.log_prompts:
            log.info("prompts", texts=[spelled(prompt) for prompt in job.prompts])
        work = candidates(backend, replace(job, deadline=deadline))
        async with contextlib.aclosing(bridge.stream(work, lease.release)) as batches:
            async for items in batches:
                for item in coalesced(items):
                    account.see(item)
                    if state.settings.log_prompts and isinstance(item[1], StepResult):
                        log.info("output", candidate=item[0], text=item[1].text)
                    yield item


async def collect(state: ServerState, kind: str, job: Job, arrived: float) -> dict[int, StepResult]:
    """The results of all candidates, by number, in order."""
    async with contextlib.aclosing(generate(state, kind, job, arrived)) as items:
        found = {index: item async for index, item in items if isinstance(item, StepResult)}
    return dict(sorted(found.items()))


async def admitted(
    state: ServerState,
    kind: str,
    work: Coroutine[Any, Any, T],
    arrived: float,
    usage: Callable[[T], Usage],
) -> T:
    """The outcome of `work` on the engine's loop, which generates nothing but needs a place.
    `usage` tells what it used. Raises `Overloaded`, `DeadlineExceeded`, and what `work` raises."""
    with Account(state, kind, arrived) as account:
        outcome = await placed(state, work, arrived)
        account.use(usage(outcome))
        return outcome


@contextlib.contextmanager
def preparing(state: ServerState, kind: str, arrived: float) -> Iterator[None]:
    """Count a request that is refused before any work."""
    try:
        yield
    except PhloemError:
        state.metrics.count(kind, "rejected", Usage(), time.monotonic() - arrived)
        raise


async def placed(state: ServerState, work: Coroutine[Any, Any, T], arrived: float) -> T:
    """The same for a part of a request, which is counted elsewhere."""
    left = max(0.0, arrived + state.settings.request_timeout_s - time.monotonic())
    deadline = asyncio.get_running_loop().time() + left
    try:
        lease = await state.gate.enter(left)
    except BaseException:
        work.close()
        raise
    try:
        async with asyncio.timeout_at(deadline):
            return await bridge.call(work)
    except TimeoutError:
        raise DeadlineExceeded(
            "the deadline has passed before the prompts were scored", hint="send fewer at once"
        ) from None
    finally:
        lease.release()
