"""The jobs that wait, in the order in which they are to be served.

What lives here: `WaitingJobs`. What does not: whether there is room for one (`admission.py`).

The order: higher priority first, then what was suspended, then the longest cached prefix (its
pages are used while they are there), then arrival. The bound: at most `overtakes` jobs that
arrived later are served before any job, whatever their priority and prefix. It needs one count
only: whoever overtook a job also overtook all that were older and waited, so the oldest has
been overtaken most; when it has reached the bound it is next.

Nothing here looks at all jobs. The order is kept in heaps whose outdated entries are dropped as
they surface; cached prefixes change while jobs wait, so a few jobs, in turn, are ranked anew
whenever places are given away. A job whose prompt is being computed by another is put aside
until that is done.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from phloem.runtime.engine.job import Job

__all__ = ["WaitingJobs"]

Rank: TypeAlias = tuple[int, bool, int, int]

_REFRESHED = 8
"""Jobs that are ranked anew, in turn, each time places are given away."""

_RELEASED = 64
"""Jobs put aside that are ranked again each time places are given away."""


class WaitingJobs:
    """`cached_prefix` tells how many tokens a job would find in the cache. Not thread-safe."""

    def __init__(self, cached_prefix: Callable[[Job], int], overtakes: int) -> None:
        self.looked_at = 0
        """How often a job was ranked or proposed, since the start."""
        self._cached_prefix = cached_prefix
        self._overtakes = overtakes
        self._tickets = itertools.count()
        self._jobs: dict[int, Job] = {}
        # The rank of each job that may be served; one put aside has none.
        self._ranks: dict[int, Rank] = {}
        self._ranked: list[Rank] = []
        self._oldest: list[int] = []
        self._deadlines: list[tuple[float, int]] = []
        self._in_turn: deque[int] = deque()
        self._aside: dict[Job, list[int]] = {}
        self._released: deque[int] = deque()
        # Tickets that were served before the oldest job, though they are higher.
        self._overtaking: list[int] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def __contains__(self, job: Job) -> bool:
        return job.ticket in self._jobs

    def add(self, job: Job) -> None:
        """Queue a job. One that was suspended keeps its place by arrival."""
        if job.ticket is None:
            job.ticket = next(self._tickets)
        self._jobs[job.ticket] = job
        heapq.heappush(self._oldest, job.ticket)
        if job.deadline is not None:
            heapq.heappush(self._deadlines, (job.deadline, job.ticket))
        self._in_turn.append(job.ticket)
        self._rank(job.ticket)

    def remove(self, job: Job) -> None:
        """Take a job out that is not going to be served."""
        assert job.ticket is not None
        del self._jobs[job.ticket]
        self._ranks.pop(job.ticket, None)

    def serve(self, job: Job) -> None:
        """Take a job out that is being served."""
        assert job.ticket is not None
        self.remove(job)
        insort(self._overtaking, job.ticket)
        oldest = self._oldest_ticket()
        if oldest is None:
            self._overtaking.clear()
        else:
            del self._overtaking[: bisect_right(self._overtaking, oldest)]

    def first(self) -> Job | None:
        """The job to be served next; None if all wait for others that are running."""
        oldest = self._oldest_ticket()
        if oldest is None:
            return None
        self.looked_at += 1
        overtaken = len(self._overtaking) - bisect_right(self._overtaking, oldest)
        if overtaken >= self._overtakes:
            return self._jobs[oldest] if oldest in self._ranks else None
        while self._ranked:
            rank = self._ranked[0]
            if self._ranks.get(rank[-1]) == rank:
                return self._jobs[rank[-1]]
            heapq.heappop(self._ranked)
        return None

    def put_aside(self, job: Job, other: Job) -> None:
        """Don't propose `job` while `other` computes what it can use."""
        assert job.ticket is not None
        del self._ranks[job.ticket]
        self._aside.setdefault(other, []).append(job.ticket)

    def refresh(self, computing: Callable[[Job], bool]) -> None:
        """Rank a few jobs anew, and those put aside for a job that is not `computing` now."""
        for other in [other for other in self._aside if not computing(other)]:
            self._released.extend(self._aside.pop(other))
        for _ in range(min(_RELEASED, len(self._released))):
            ticket = self._released.popleft()
            if ticket in self._jobs:
                self._rank(ticket)
        for _ in range(min(_REFRESHED, len(self._in_turn))):
            ticket = self._in_turn.popleft()
            if ticket in self._ranks:
                self._rank(ticket)
            if ticket in self._jobs:
                self._in_turn.append(ticket)

    def expired(self, now: float) -> list[Job]:
        """The jobs whose deadline has passed."""
        found: dict[int, Job] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, ticket = heapq.heappop(self._deadlines)
            if ticket in self._jobs:
                found[ticket] = self._jobs[ticket]
        return list(found.values())

    def _rank(self, ticket: int) -> None:
        self.looked_at += 1
        job = self._jobs[ticket]
        fresh = job.clock.started is None
        rank = (-job.priority, fresh, -self._cached_prefix(job), ticket)
        if self._ranks.get(ticket) != rank:
            self._ranks[ticket] = rank
            heapq.heappush(self._ranked, rank)

    def _oldest_ticket(self) -> int | None:
        while self._oldest and self._oldest[0] not in self._jobs:
            heapq.heappop(self._oldest)
        return self._oldest[0] if self._oldest else None
