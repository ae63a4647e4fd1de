"""When KV is used next, as far as hints and the past tell.

What lives here: `Interest` (what is known of one session's next use), `Waits` (what was learned
at one place of a program) and `Forecast`, which turns both into a time. What does not: which page
goes first (`radix_cache.py`).

A place is a node of a program. For each place two things are learned from all runs that came by:
how long sessions wait there for their next step, and how many of those that were said to have
one ever take it; and the same for sessions that ended there, whose text a later session may go
on from (the next turn of a conversation). Averages give more weight to late runs.

An expected use that lies in the past tells that the wait is a long one: it is then taken to last
as long again as it has lasted. (Waiting times of people and tools have heavy tails; compare
Lindy's law, and the conditional hit density of Beckmann et al. 2018, LHD.)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phloem.runtime.engine.radix_tree import Node

__all__ = ["Forecast", "Interest", "Waits"]

_WEIGHT = 0.05
"""Of the latest of many runs in an average."""

_PATIENCE = 8.0
"""An ended session whose text nobody went on from for so many mean waits counts as at its end."""

_REMEMBERED = 4096
"""Ended sessions that are remembered, and places."""


class Interest:
    """What is known of the next use that a session has for its KV.

    `next_use` is the number of steps until then (None: not known, or never) and `place` where in
    its program the session stands; `queued` is set while a step of the session waits already,
    `ended` once it is not to have another. `since` is when this was said. `node` is where the
    session's tokens end in the cache.
    """

    __slots__ = ("began", "ended", "next_use", "node", "place", "queued", "since")

    def __init__(self) -> None:
        self.next_use: int | None = None
        self.place = ""
        self.queued = False
        self.ended = False
        self.began = False
        """Whether the session has had a step."""
        self.since = 0.0
        self.node: Node | None = None


@dataclass(slots=True)
class Waits:
    """Of the sessions at one place: the mean wait of those that came back, in seconds, and the
    share that did. Both count for nothing until a session has come back."""

    mean_s: float = 0.0
    share: float = 0.0
    came: int = 0
    seen: int = 0

    def came_back(self, wait_s: float) -> None:
        """A session went on after `wait_s`."""
        self.came += 1
        self.mean_s += max(_WEIGHT, 1 / self.came) * (wait_s - self.mean_s)
        self._count(1.0)

    def gave_up(self) -> None:
        """A session did not go on."""
        self._count(0.0)

    def _count(self, outcome: float) -> None:
        self.seen += 1
        self.share += max(_WEIGHT, 1 / (self.seen + 1)) * (outcome - self.share)

    @property
    def expected_s(self) -> float:
        """The mean wait over the share that comes back: infinite while nobody has."""
        return self.mean_s / self.share if self.came else math.inf


class Forecast:
    """All that was learned. `now` is a clock in seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._step_s = 1.0
        """Mean wait over all places, for those of which nothing is known."""
        self._waiting: OrderedDict[str, Waits] = OrderedDict()
        self._ended: OrderedDict[str, Waits] = OrderedDict()
        # By the chained hash of its whole pages: where and when a session ended.
        self._endings: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def waits(self, place: str, *, ended: bool = False) -> Waits:
        """What is known of a place."""
        table = self._ended if ended else self._waiting
        found = table.get(place)
        if found is None:
            found = table[place] = Waits()
            if len(table) > _REMEMBERED:
                table.popitem(last=False)
        return found

    def resumed(self, interest: Interest) -> None:
        """A session that was to go on does."""
        if interest.next_use is not None:
            wait = self.now() - interest.since
            self.waits(interest.place).came_back(wait)
            self._step_s += _WEIGHT * (wait - self._step_s)
        interest.next_use = None
        interest.ended = False

    def abandoned(self, interest: Interest) -> None:
        """A session that was to go on ended."""
        if interest.next_use is not None:
            self.waits(interest.place).gave_up()

    def ended(self, chain: int, place: str) -> None:
        """A session ended after the pages of `chain`."""
        now = self.now()
        while self._endings:
            first, (where, when) = next(iter(self._endings.items()))
            waits = self.waits(where, ended=True)
            patience = _PATIENCE * waits.mean_s if waits.came else math.inf
            if len(self._endings) < _REMEMBERED and now - when <= patience:
                break
            self._forget(first)
        if chain in self._endings:
            self._forget(chain)
        self._endings[chain] = (place, now)

    def _forget(self, chain: int) -> None:
        place, _ = self._endings.pop(chain)
        self.waits(place, ended=True).gave_up()

    def continued(self, chain: int) -> None:
        """A new session's tokens begin with the pages of `chain`."""
        found = self._endings.pop(chain, None)
        if found is not None:
            place, when = found
            self.waits(place, ended=True).came_back(self.now() - when)

    def next_use(self, interest: Interest) -> float:
        """When the session's KV is expected to be used; infinite: nothing says that it will."""
        if interest.queued:
            return -math.inf
        if interest.ended:
            return self.overdue(interest.since, self.waits(interest.place, ended=True).expected_s)
        if interest.next_use is None:
            return math.inf
        # The more steps lie between, the likelier the run ends in one of them.
        steps = 1 + interest.next_use
        waits = self.waits(interest.place)
        return self.overdue(
            interest.since, waits.expected_s if waits.came else self._step_s * steps * steps
        )

    def overdue(self, since: float, wait: float) -> float:
        """The end of a wait that began at `since`, not in the past."""
        now = self.now()
        expected = since + wait
        return expected if expected > now else now + (now - since)
