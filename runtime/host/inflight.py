"""What has been asked of the engine process and not yet answered.

What lives here: `Inflight`, which numbers jobs, finds the owner of each reply, and tells all owners
when the process has ended. What does not: the process (`supervisor.py`).
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from phloem.errors import Cancelled, DeadlineExceeded, PhloemError
from phloem.runtime.engine.messages import Deliver, Failed, Progress
from phloem.runtime.engine.work import Generate, Score, Work
from phloem.runtime.host import wire
from phloem.runtime.lane import Cancel

__all__ = ["Inflight"]

GRACE_S = 1.0
"""An engine in good health ends a job at its deadline; one that hangs gets this much longer."""


@dataclass(frozen=True, slots=True)
class _Asked:
    deliver: Deliver
    encoded: bytes
    deadline: float | None


class Inflight:
    """Jobs by number. Every method may be called from any thread; owners are told outside of
    the lock, and each is told one outcome."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, _Asked] = {}
        self._send: Callable[[bytes], None] | None = None
        self._refusal: Callable[[], PhloemError] | None = None

    def submit(self, lane: int, work: Work, deliver: Deliver) -> Cancel:
        """Ask for work; while no process is ready it waits for the next one, or is refused."""
        number = next(self._numbers)
        deadline = work.place.deadline if isinstance(work, Generate | Score) else None
        try:
            encoded = wire.encode_to_child(wire.Submit(number, lane, work))
        except PhloemError as error:
            deliver(Failed(error))
            return lambda: None
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._jobs[number] = _Asked(deliver, encoded, deadline)
                if self._send is not None:
                    self._send(encoded)
        if refusal is not None:
            deliver(Failed(refusal()))
        return functools.partial(self._cancel, number)

    def tell(self, message: wire.Expect | wire.Prepare) -> None:
        """Say something that has no answer; lost while no process is ready."""
        with self._lock:
            if self._send is not None:
                self._send(wire.encode_to_child(message))

    def attach(self, send: Callable[[bytes], None]) -> None:
        """A process is ready: it gets what waits, and what is asked from now on."""
        with self._lock:
            self._send, self._refusal = send, None
            for asked in self._jobs.values():
                send(asked.encoded)

    def detach(self, error: Callable[[], PhloemError], *, refuse: bool) -> list[Callable[[], None]]:
        """The process has ended: so do all jobs. With `refuse` new ones do not wait.

        Gives what tells the owners, to be called once whatever they look at says so too.
        """
        with self._lock:
            lost, self._jobs = self._jobs, {}
            self._send, self._refusal = None, error if refuse else None
        return [functools.partial(asked.deliver, Failed(error())) for asked in lost.values()]

    def wait_for_next(self) -> None:
        """Another process is on its way: jobs wait for it again."""
        with self._lock:
            self._refusal = None

    def receive(self, message: wire.Reply | wire.Broken) -> None:
        """Hand a reply to its owner; one of a job that is over is dropped."""
        going = isinstance(message, wire.Reply) and isinstance(message.message, Progress)
        with self._lock:
            asked = self._jobs.get(message.job) if going else self._jobs.pop(message.job, None)
        if asked is not None:
            if isinstance(message, wire.Reply):
                asked.deliver(message.message)
            else:
                asked.deliver(Failed(message.error.error()))

    def expire(self) -> None:
        """End jobs whose deadline has passed although the process has not said so."""
        late = time.monotonic() - GRACE_S
        with self._lock:
            over = [
                n for n, a in self._jobs.items() if a.deadline is not None and a.deadline < late
            ]
        for number in over:
            self._end(number, DeadlineExceeded("the deadline has passed before the step was done"))

    def __len__(self) -> int:
        return len(self._jobs)

    def _cancel(self, number: int) -> None:
        self._end(number, Cancelled("the step was cancelled"))

    def _end(self, number: int, error: PhloemError) -> None:
        with self._lock:
            asked = self._jobs.pop(number, None)
            if asked is not None and self._send is not None:
                self._send(wire.encode_to_child(wire.Cancel(number)))
        if asked is not None:
            asked.deliver(Failed(error))
