"""How long until KV is used again, as far as hints and the past tell.

What lives here: `Waits` (a learned distribution of waits) and `Forecast`, which turns them and
what is known of each session (`radix_tree.Interest`) into a time. What does not: which page goes
first (`radix_cache.py`).

Three things are learned. At each place of a program (a node): how long sessions wait there for
their next step, and how many of those that were said to have one never take it. The same for
sessions that ended there, whose text a later session may go on from (the next turn of a
conversation). And for pages by which new sessions came a number of times: how long until another
comes, in units of the page's own mean interval.

Given the time that has passed, a distribution tells the chance that the use still comes and how
long that takes then; the first over the second is the rate that counts. (Conditional on age, as
in LHD, Beckmann et al. 2018.)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from phloem.runtime.engine.radix_tree import Interest, Node

__all__ = ["Forecast", "Interest", "Waits"]

_BASE = 1.4
"""Each bucket of a distribution is so many times as wide as the one before."""

_SHORTEST = 1e-3
_BUCKETS = 48

_GROWTH = 1.02
"""Each run counts so much more than the one before it: the last 50 or so decide."""

_PATIENCE = 3.0
"""An ended session whose text nobody went on from for so many mean waits counts as at its end."""

_REMEMBERED = 4096
"""Ended sessions that are remembered, and places."""

_FEW = 3
"""Pages by which more sessions came speak for themselves, others by what became of such pages."""


class Waits:
    """A distribution of waits, in buckets of growing width, and the weight of those that never
    ended. Late ones count more."""

    __slots__ = ("_came", "_mean", "_never", "_weight")

    def __init__(self) -> None:
        self._came = [0.0] * _BUCKETS
        self._never = 0.0
        self._mean = 0.0
        self._weight = 1.0

    @property
    def mean(self) -> float | None:
        """Of the waits that ended; None before there is one."""
        return self._mean or None

    def came(self, wait: float) -> None:
        """A wait ended with a use."""
        self._mean += (wait - self._mean) * (0.05 if self._mean else 1.0)
        self._came[_bucket(wait)] += self._next_weight()

    def never(self) -> None:
        """A wait ended without a use."""
        self._never += self._next_weight()

    def _next_weight(self) -> float:
        self._weight *= _GROWTH
        if self._weight > 1e9:
            self._came = [count / self._weight for count in self._came]
            self._never /= self._weight
            self._weight = 1.0
        return self._weight

    def remaining(self, age: float) -> float:
        """Time to the use of something that has waited for `age`, over the chance that it comes.

        Infinite if no wait of more than `age` has ended with a use.
        """
        first = _bucket(age)
        weight = sum(self._came[first:])
        if not weight:
            return math.inf
        time = sum(
            count * max(_MIDDLES[i] - age, _MIDDLES[i] * 0.1)
            for i, count in enumerate(self._came[first:], first)
            if count
        )
        return time / weight * (weight + self._never) / weight


def _bucket(wait: float) -> int:
    if wait <= _SHORTEST:
        return 0
    return min(1 + int(math.log(wait / _SHORTEST, _BASE)), _BUCKETS - 1)


_MIDDLES: list[float] = [_SHORTEST * _BASE ** (i - 0.5) for i in range(_BUCKETS)]


class Forecast:
    """All that was learned. `now` is a clock in seconds; `pages` pages that were given up are
    remembered. Not thread-safe."""

    def __init__(self, now: Callable[[], float], pages: int) -> None:
        self.now = now
        self._remembered = pages
        # By the chained hash: how often, when last and how often per second sessions came by.
        self._gone: OrderedDict[int, tuple[int, float, float]] = OrderedDict()
        self._step_s = 1.0
        """Mean wait over all places, for those of which nothing is known."""
        self._waiting: OrderedDict[str, Waits] = OrderedDict()
        self._ended: OrderedDict[str, Waits] = OrderedDict()
        self._visits = [Waits() for _ in range(_FEW)]
        # By the chained hash of its whole pages: where and when a session ended.
        self._endings: OrderedDict[int, tuple[str, float]] = OrderedDict()

    # Sessions that wait for their next step

    def resumed(self, interest: Interest) -> None:
        """A session that was to go on does."""
        if interest.next_use is not None:
            wait = self.now() - interest.since
            _at(self._waiting, interest.place).came(wait)
            self._step_s += 0.05 * (wait - self._step_s)
        interest.next_use = None
        interest.ended = False

    def abandoned(self, interest: Interest) -> None:
        """A session that was to go on ended."""
        if interest.next_use is not None:
            _at(self._waiting, interest.place).never()

    # Sessions that ended, and those that go on from their text

    def ended(self, chain: int, place: str) -> None:
        """A session ended after the pages of `chain`."""
        now = self.now()
        while self._endings:
            first, (where, when) = next(iter(self._endings.items()))
            mean = _at(self._ended, where).mean
            patience = math.inf if mean is None else _PATIENCE * mean
            if len(self._endings) < _REMEMBERED and now - when <= patience:
                break
            self._forget(first)
        if chain in self._endings:
            self._forget(chain)
        self._endings[chain] = (place, now)

    def _forget(self, chain: int) -> None:
        place, _ = self._endings.pop(chain)
        _at(self._ended, place).never()

    def continued(self, chain: int) -> None:
        """A new session's tokens begin with the pages of `chain`."""
        found = self._endings.pop(chain, None)
        if found is not None:
            place, when = found
            _at(self._ended, place).came(self.now() - when)

    # Pages by which new sessions come

    def entered(self, node: Node) -> None:
        """A page is cached: for the first time, or again."""
        known = self._gone.pop(node.chain, None)
        if known is None:
            node.arrivals, node.seen = 1, self.now()
        else:
            node.arrivals, node.seen, node.interval = known

    def visited(self, node: Node) -> None:
        """A new session comes by a page."""
        node.arrivals, node.seen, node.interval = self._visit(
            node.arrivals, node.seen, node.interval
        )

    def missed(self, chain: int) -> None:
        """A new session would have come by the page of `chain`, if it were still there."""
        known = self._gone.get(chain)
        if known is not None:
            self._gone[chain] = self._visit(*known)

    def left(self, node: Node) -> None:
        """A page is given up; what is known of it is kept for a while."""
        self._gone[node.chain] = (node.arrivals, node.seen, node.interval)
        if len(self._gone) > self._remembered:
            _, (arrivals, _, _) = self._gone.popitem(last=False)
            if arrivals <= _FEW:
                self._visits[arrivals - 1].never()

    def _visit(self, arrivals: int, seen: float, interval: float) -> tuple[int, float, float]:
        now = self.now()
        wait = now - seen
        if arrivals <= _FEW:
            self._visits[arrivals - 1].came(wait / (interval or 1.0))
        interval += max(0.1, 1 / arrivals) * (wait - interval)
        return arrivals + 1, now, interval

    # What follows from it

    def remaining(self, node: Node) -> float:
        """Seconds until a page is used, over the chance of that, by all that is known of it:
        the rates of all who may use it add up. Infinite: nothing says that it will be used."""
        rate = 0.0
        for interest in node.interests:
            if interest.queued:
                return 0.0
            rate += 1 / max(self._of_session(interest), _SHORTEST)
        age = self.now() - node.seen
        if node.arrivals > _FEW:
            rate += 1 / max(node.interval, age)
        elif not node.interests:
            interval = node.interval or 1.0
            waits = self._visits[node.arrivals - 1].remaining(age / interval)
            rate = 1 / max(interval * waits, _SHORTEST)
        return 1 / rate if rate else math.inf

    def _of_session(self, interest: Interest) -> float:
        age = self.now() - interest.since
        if interest.ended:
            return _at(self._ended, interest.place).remaining(age)
        if interest.next_use is None:
            return math.inf
        waits = _at(self._waiting, interest.place)
        if waits.mean is not None:
            return waits.remaining(age)
        # The more steps lie between, the likelier the run ends in one of them.
        steps = 1 + interest.next_use
        return max(self._step_s * steps * steps, age)


def _at(table: OrderedDict[str, Waits], place: str) -> Waits:
    found = table.get(place)
    if found is None:
        found = table[place] = Waits()
        if len(table) > _REMEMBERED:
            table.popitem(last=False)
    return found
