"""Requests end by their id, and only by whoever has sent them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from phloem.server.http.aborts import Aborted, Aborts


async def numbers() -> AsyncIterator[int]:
    """0, and then nothing for ever."""
    yield 0
    await asyncio.Event().wait()


async def test_an_id_is_its_callers_own() -> None:
    """A stranger's abort of the same id ends nothing; the caller's own ends the stream."""
    aborts = Aborts()
    stream = aborts.stream("me", ["x"], numbers())
    assert await anext(stream) == 0
    coming = asyncio.ensure_future(anext(stream))
    aborts.abort("somebody else", "x")
    aborts.abort_all("somebody else")
    await asyncio.sleep(0)
    assert not coming.done()
    aborts.abort_all("me")
    with pytest.raises(Aborted):
        await coming


async def test_what_is_over_can_be_aborted() -> None:
    """An id that nothing runs under is no error, and leaves nothing behind."""
    aborts = Aborts()

    async def work() -> int:
        return 7

    assert await aborts.run("me", ["x", "x"], work()) == 7
    aborts.abort("me", "x")
    assert await aborts.run("me", ["x"], work()) == 7


async def test_a_caller_that_leaves_ends_the_work() -> None:
    """Cancelling the wait cancels the work too."""
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.ensure_future(Aborts().run("me", ["x"], work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
