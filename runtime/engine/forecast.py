"""How long until KV is used again, as far as hints and the past tell.

What lives here: `Waits` (a learned distribution of waits) and `Forecast`, which turns them and
what is known of each session (`radix_tree.Interest`) into a time. What does not: which page goes
first (`radix_cache.py`), and how often sessions come that nobody foretold (`arrivals.py`).

Two things are learned of sessions. At each place of a program (a node): how long they wait there
for their next step, and how many of those that were said to have one never take it. The same for
sessions that ended there, whose text a later session may go on from (the next turn of a
conversation); the chance of that is learned for each turn, since conversations end.

Given the time that has passed, a distribution tells the chance that the use still comes and how
long that takes then; the first over the second is the rate that counts. (Conditional on age, as
in LHD, Beckmann et al. 2018.)
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable

from phloem.runtime.engine.arrivals import Arrivals
from phloem.runtime.engine.radix_tree import Interest, Node, Tokens

__all__ = ["Forecast", "Interest", "Waits"]

_BASE = 1.4
"""Each bucket of a distribution is so many times as wide as the one before."""

_SHORTEST = 1e-3
_BUCKETS = 48

_GROWTH = 1.02
"""Each run counts so much more than the one before it: the last 50 or so decide."""

_PATIENCE = 2.5
"""An ended session whose text nobody went on from for so many mean waits counts as at its end."""

_RECOUNT, _RECOUNT_S = 0.1, 1.0
"""Those that are overdue are counted again after so many mean waits, and so many seconds."""

_REMEMBERED = 4096
"""Ended sessions that are remembered, and places."""

_TURNS = 16
"""Turns of a conversation that are told apart."""

_PRIOR = 2.0
"""What is known of all turns of a place counts for each of them like so many waits."""


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

    def odds(self, overdue: float, before: float | None = None) -> float:
        """Waits that never end, for one that does: also by the odds `before` of all such waits.

        `overdue` of those that go on would have ended by now, were they to end.
        """
        counts = 0.0 if before is None else _PRIOR * self._weight
        came = sum(self._came) + counts
        never = self._never + overdue * self._weight + counts * (before or 0.0)
        return never / came if came else math.inf

    def shares(self) -> list[float]:
        """Of the waits that ended with a use, the share that had by the middle of each bucket."""
        ended = list(itertools.accumulate(self._came))
        whole = ended[-1] or 1.0
        return [(there - here / 2) / whole for there, here in zip(ended, self._came, strict=True)]

    def remaining(self, age: float, odds: float | None = None) -> float:
        """Time to the use of something that has waited for `age`, over the chance that it comes.

        `odds` are those of a wait that never ends, if they are known better than from these.
        Infinite if no wait of more than `age` has ended with a use.
        """
        first = _bucket(age)
        weight = sum(self._came[first:])
        if not weight:
            return math.inf
        never = self._never if odds is None else odds * sum(self._came)
        time = sum(
            count * max(_MIDDLES[i] - age, _MIDDLES[i] * 0.1)
            for i, count in enumerate(self._came[first:], first)
            if count
        )
        return time / weight * (weight + never) / weight


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
        self.arrivals = Arrivals(now, pages)
        self._step_s = 1.0
        """Mean wait over all places, for those of which nothing is known."""
        self._waiting: OrderedDict[str, Waits] = OrderedDict()
        self._ended: OrderedDict[str, Waits] = OrderedDict()
        self._turns: OrderedDict[str, Waits] = OrderedDict()
        # Ended sessions by a hash of their whole text; those that are expected back by place, too;
        # and how many of all there are by the hash of its whole pages.
        self._endings: OrderedDict[int, Interest] = OrderedDict()
        self._open: defaultdict[str, OrderedDict[int, Interest]] = defaultdict(OrderedDict)
        self._stems: Counter[int] = Counter()
        # By place: until when it is good, and how many of those in `_open` are overdue, by turn.
        self._overdue: dict[str, tuple[float, defaultdict[int, float]]] = {}

    # Sessions that wait for their next step

    def resumed(self, interest: Interest) -> None:
        """A session that was to go on does, or one that had ended."""
        if self._endings.get(interest.text) is interest:
            self._take(interest)
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

    def ended(self, interest: Interest) -> list[Interest]:
        """A session ended; returns those that ended before and are not expected back any more.

        They are remembered all the same, as many as there is room for: waits longer than all
        before must be learned too.
        """
        here = _at(self._ended, interest.place)
        patience = math.inf if here.mean is None else _PATIENCE * here.mean
        given_up = [
            *itertools.takewhile(
                lambda other: self.now() - other.since > patience,
                self._open[interest.place].values(),
            )
        ]
        for other in given_up:
            self._give_up(other)
        dropped = [self._endings.get(interest.text)]
        if len(self._endings) >= _REMEMBERED:
            dropped.append(next(iter(self._endings.values())))
        for old in dropped:
            if old is not None and self._endings.get(old.text) is old:
                if self._give_up(old):
                    given_up.append(old)
                self._take(old)
        self._endings[interest.text] = self._open[interest.place][interest.text] = interest
        self._stems[interest.stem] += 1
        return given_up

    def _give_up(self, interest: Interest) -> bool:
        """Count a session as one that nobody goes on from, unless it is so counted."""
        expected = self._close(interest)
        if expected:
            for waits in self._of_ended(interest):
                waits.never()
        return expected

    def _close(self, interest: Interest) -> bool:
        here = self._open[interest.place]
        expected = here.pop(interest.text, None) is not None
        if not here:
            del self._open[interest.place]
            self._overdue.pop(interest.place, None)
        return expected

    def continued(self, stem: int, following: Tokens) -> Interest | None:
        """A new session's tokens begin with the whole pages of `stem`, and go on with those of a
        page: the session that ended on the way, if there is one."""
        if stem not in self._stems:
            return None
        for length in range(len(following), -1, -1):
            found = self._endings.get(hash((stem, following[:length])))
            if found is not None:
                for waits in self._of_ended(found):
                    waits.came(self.now() - found.since)
                self._take(found)
                return found
        return None

    def _take(self, interest: Interest) -> None:
        del self._endings[interest.text]
        self._close(interest)
        self._stems[interest.stem] -= 1
        if not self._stems[interest.stem]:
            del self._stems[interest.stem]

    def _of_ended(self, interest: Interest) -> tuple[Waits, Waits]:
        turn = f"{interest.place}#{min(interest.turn, _TURNS)}"
        return _at(self._ended, interest.place), _at(self._turns, turn)

    def _odds_of(self, interest: Interest) -> float:
        """The odds that nobody goes on from a session, by others that ended at its place and turn.

        A use shows at once and its absence late, so of the latest sessions mostly the uses would
        be known. Therefore one that is still waited for counts as never used by the chance that
        its use would have shown by now (as in cure models, Boag 1949).
        """
        place, turn = self._of_ended(interest)
        now = self.now()
        good_until, overdue = self._overdue.get(interest.place, (0.0, defaultdict(float)))
        if place.mean is not None and interest.place in self._open and now >= good_until:
            shares = place.shares()
            overdue = defaultdict(float)
            for other in self._open[interest.place].values():
                overdue[min(other.turn, _TURNS)] += shares[_bucket(now - other.since)]
            good_until = now + max(_RECOUNT * place.mean, _RECOUNT_S)
            self._overdue[interest.place] = good_until, overdue
        of_all = place.odds(sum(overdue.values()))
        return turn.odds(overdue[min(interest.turn, _TURNS)], of_all)

    # What follows from it

    def remaining(self, node: Node) -> float:
        """Seconds until a page is used, over the chance of that, by all that is known of it:
        the rates of all who may use it add up. Infinite: nothing says that it will be used."""
        rate = self.arrivals.rate(node)
        for interest in node.interests:
            if interest.queued:
                return 0.0
            rate += 1 / max(self.of_session(interest), _SHORTEST)
        return 1 / rate if rate else math.inf

    def of_session(self, interest: Interest) -> float:
        """Seconds until a session, or one that goes on from it, uses its KV, over the chance."""
        age = self.now() - interest.since
        if interest.ended:
            return self._of_ended(interest)[0].remaining(age, self._odds_of(interest))
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
