"""What a generating endpoint asks for, and doing it on the engine.

What lives here: `Job` and `candidates`, which runs on the engine's loop. What does not:
admission and accounting (`run.py`), and how requests and replies look (`openai/`, `sglang/`).

The rule on lengths, the same for all endpoints: prompt + max_tokens must fit the context, or
the request is refused with all three numbers. Without max_tokens the output may take whatever
the prompt leaves free.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from phloem.errors import ConfigError, EngineRestarted, PromptTooLong, Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import (
    Backend,
    SamplingParams,
    Segment,
    Session,
    Snapshot,
    Special,
    StepResult,
    Text,
    TokenEvent,
)

__all__ = [
    "Item",
    "Job",
    "Prompt",
    "Tokens",
    "about_prompt",
    "candidates",
    "coalesced",
    "count_tokens",
    "spelled",
]

LONG = 20_000
"""Characters; longer prompts are counted on a thread, so that megabytes hold nobody up."""

Item: TypeAlias = tuple[int, TokenEvent | StepResult]
"""The candidate's number and what happened to it; a candidate ends with its `StepResult`."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt that is given as the ids of its tokens."""

    ids: tuple[int, ...]


Prompt: TypeAlias = tuple[Segment, ...] | Tokens


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts and how to go on from each, `n` times. `max_tokens` None: as many as fit.

    Candidate k of prompt p has the number p * n + k. `deadline` is a `time.monotonic()`
    instant.
    """

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    max_tokens: int | None
    n: int = 1
    constraint: Constraint | None = None
    namespace: str = ""
    deadline: float | None = None
    priority: int = 0
    field: str = "prompt"
    """The request's field that holds the prompts; errors name it."""


async def candidates(backend: Backend, job: Job) -> AsyncGenerator[Item, None]:
    """The progress of all candidates of a job as it comes; see `Item`.

    Raises `PromptTooLong` before anything is computed, and what `Session.generate` raises;
    the first candidate to fail ends the others. A job that loses its engine before anything came
    of it is done once more.
    """
    told = False
    try:
        async with contextlib.aclosing(_once(backend, job)) as items:
            async for item in items:
                _, happened = item
                told = told or isinstance(happened, StepResult) or not happened.empty
                yield item
    except EngineRestarted:
        if told:
            raise
    else:
        return
    async with contextlib.aclosing(_once(backend, job)) as items:
        async for item in items:
            yield item


async def _once(backend: Backend, job: Job) -> AsyncGenerator[Item, None]:
    rooms = [await _room(backend, job, prompt) for prompt in job.prompts]
    sessions: list[Session] = []
    streams = []
    try:
        for prompt, room in zip(job.prompts, rooms, strict=True):
            session = await _open(backend, job, prompt)
            sessions.append(session)
            branches = [session]
            if job.n > 1:
                branches = await session.fork(job.n)
                sessions += branches
            params = replace(job.params, max_tokens=room)
            streams += [branch.generate(params, job.constraint) for branch in branches]
        async with contextlib.aclosing(_merge(streams)) as merged:
            async for item in merged:
                yield item
    finally:
        for session in sessions:
            await session.close()


async def _open(backend: Backend, job: Job, prompt: Prompt) -> Session:
    name = f"http-{uuid.uuid4().hex[:12]}"
    if isinstance(prompt, Tokens):
        fingerprint = backend.capabilities.fingerprint
        snapshot = Snapshot(fingerprint, prompt.ids, namespace=job.namespace)
        with about_prompt(job):
            return await backend.restore(
                snapshot, name, deadline=job.deadline, priority=job.priority
            )
    session = await backend.open(
        name, namespace=job.namespace, deadline=job.deadline, priority=job.priority
    )
    session.append(prompt)
    return session


@contextlib.contextmanager
def about_prompt(job: Job) -> Iterator[None]:
    """Say that what is not supported here is the prompt: it may hold ids that the model lacks."""
    try:
        yield
    except Unsupported as error:
        error.details.setdefault("param", job.field)
        raise


def coalesced(items: Sequence[Item]) -> list[Item]:
    """The same items, where tokens of a candidate that came one after the other are one: a
    server that is behind has fewer events to send."""
    found: list[Item] = []
    for index, item in items:
        if found and found[-1][0] == index and isinstance(item, TokenEvent):
            before = found[-1][1]
            if isinstance(before, TokenEvent):
                found[-1] = (index, before + item)
                continue
        found.append((index, item))
    return found


def count_tokens(backend: Backend, prompt: Prompt) -> int:
    """How many tokens the prompt is; adjacent texts count as one."""
    if isinstance(prompt, Tokens):
        return len(prompt.ids)
    total = 0
    text = ""
    for segment in prompt:
        if isinstance(segment, Text):
            text += segment.text
            continue
        assert isinstance(segment, Special)
        total += 1 + (backend.count(text) if text else 0)
        text = ""
    return total + (backend.count(text) if text else 0)


def spelled(prompt: Prompt) -> str:
    """The prompt as one text, special tokens by their spelling; for the log, where asked."""
    if isinstance(prompt, Tokens):
        return str(list(prompt.ids))
    return "".join(part.text if isinstance(part, Text) else part.token for part in prompt)


async def _room(backend: Backend, job: Job, prompt: Prompt) -> int:
    """The output tokens to ask for."""
    limit, max_tokens = backend.capabilities.max_context, job.max_tokens
    if _characters(prompt) > LONG:
        length = await asyncio.to_thread(count_tokens, backend, prompt)
    else:
        length = count_tokens(backend, prompt)
    if length == 0:
        raise ConfigError(
            "the prompt is empty", hint="send at least one character", param=job.field
        )
    free = limit - length
    if (max_tokens or 1) <= free:
        return max_tokens or free
    asked = "" if max_tokens is None else f" and max_tokens asks for {max_tokens} more"
    shorter = f"shorten the prompt: with max_tokens it may be at most {limit} tokens"
    raise PromptTooLong(
        f"the prompt is {length} tokens{asked}, but the context holds {limit}",
        hint=f"lower max_tokens to {free}, or shorten the prompt" if free > 0 else shorter,
        param="max_tokens" if free > 0 else job.field,
        prompt_tokens=length,
        max_tokens=max_tokens or 1,
        limit=limit,
    )


def _characters(prompt: Prompt) -> int:
    if isinstance(prompt, Tokens):
        return 0
    return sum(len(part.text) for part in prompt if isinstance(part, Text))


async def _merge(
    streams: Sequence[AsyncIterator[TokenEvent | StepResult]],
) -> AsyncGenerator[Item, None]:
    """Items of several streams in the order they come; all end when one fails."""
    if len(streams) == 1:
        stream = streams[0]
        try:
            async for item in stream:
                yield (0, item)
        finally:
            await _close(stream)
        return
    queue: asyncio.Queue[Item | Exception | None] = asyncio.Queue()

    async def read(index: int, stream: AsyncIterator[TokenEvent | StepResult]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((index, item))
        except Exception as error:  # noqa: BLE001 - raised again by the reader of the queue
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)
        finally:
            await _close(stream)

    tasks = [asyncio.ensure_future(read(index, one)) for index, one in enumerate(streams)]
    try:
        going = len(tasks)
        while going:
            happened = await queue.get()
            if isinstance(happened, Exception):
                raise happened
            if happened is None:
                going -= 1
            else:
                yield happened
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(stream: AsyncIterator[TokenEvent | StepResult]) -> None:
    if isinstance(stream, AsyncGenerator):
        await stream.aclose()
