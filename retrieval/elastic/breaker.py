"""A circuit breaker: a dead cluster costs one timeout, not one per run.

What lives here: when to ask and when not to. What does not: the asking. After a failure the
next call first waits for a short probe of the server, shared by all calls that come meanwhile;
only if the probe fails too, calls fail at once, for a time that doubles up to a limit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from phloem.errors import RetrievalError, RetrievalUnavailable

__all__ = ["Breaker"]

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Breaker:
    """Guards the calls to one cluster. Shared by all threads and event loops.

    `probe` asks the server for a sign of life and raises if there is none.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._pause = 0.0
        self._until = 0.0
        self._verdict: Future[None] | None = None
        self._probing: asyncio.Task[None] | None = None

    @property
    def remaining_s(self) -> float:
        """For how many seconds more calls are refused without a probe."""
        return max(0.0, self._until - self._clock()) if self._failure is not None else 0.0

    async def admit(self) -> None:
        """Return if the server may be called. Raises `RetrievalUnavailable` if not."""
        if self._failure is None:
            return
        with self._lock:
            if self.remaining_s:
                raise self._refusal()
            verdict = self._verdict
            if verdict is None:
                verdict = self._verdict = Future()
                self._probing = asyncio.create_task(self._run_probe(verdict))
        # A caller that is cancelled must not cancel the others' probe.
        await asyncio.shield(asyncio.wrap_future(verdict))
        if self._failure is not None:
            raise self._refusal()

    def succeeded(self) -> None:
        """The server answered."""
        self._failure, self._pause, self._until = None, 0.0, 0.0

    def failed(self, error: RetrievalError) -> None:
        """A call timed out or could not be made."""
        self._failure = error.message

    async def _run_probe(self, verdict: Future[None]) -> None:
        try:
            await self._probe()
        except RetrievalError as error:
            self.failed(error)
            self._pause = min(max(_FIRST_PAUSE_S, 2 * self._pause), _LONGEST_PAUSE_S)
            self._until = self._clock() + self._pause
        else:
            self.succeeded()
        finally:  # also if the loop ends: callers in other loops must not wait for ever
            with self._lock:
                self._verdict = None
            verdict.set_result(None)

    def _refusal(self) -> RetrievalUnavailable:
        remaining = self.remaining_s
        return RetrievalUnavailable(
            f"not asked again yet, since it failed: {self._failure}",
            hint=f"the next attempt is made in {remaining:.1f} s",
            kind="circuit-open",
            retry_after_s=remaining,
        )
