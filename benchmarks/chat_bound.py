"""What no cache can reuse more of, on average, in conversations of strangers.

What lives here: `chat_bound`, and what it is made of. What does not: the bounds for independent
requests (`bounds.py`) and for caches that see the future (`traces.best_hits`).

As in `bounds.py` the bound is a number for a trace whose mean over traces is at least the mean
reuse of every cache of so many tokens, of whatever rule, that knows all laws and all that has
come but not the draws to come. A cache is taken as in `best_hits`: it holds all tokens of the
running step. It may keep any tokens, and drops them at no other time than a step, since only steps
need room. Its room is pages of so many tokens. A page that holds tokens of one conversation alone
takes a whole page of room however few they are; what begins in the page that a system message ends
in is taken to need no more room than itself.

The proof. Let X be the tokens of one turn that are held, N jump from 0 to 1 when the conversation
goes on, and h dt be the chance of that in the next moment, given all that has come. The reuse is
the integral of X dN. What is held was chosen by what had come, so for every G of which the same is
true the integral of X G (dN - h dt) is 0 on average; and so the mean reuse is the mean of what
the holding of X brings by another count: G h dt while it is held, and 1 - G at its use. The
bound is the most by that count of any X that fits, the whole trace known. (Information
relaxation with a penalty, Brown, Smith and Sun 2010. With G = 0 it is Belady's.) It holds for any
G. It is near what can be had if 1 - G is what a token is worth that is held on and not used yet:
then an early use brings no more than a late one, and nothing is gained by knowing which it will be.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces import Again, Step

__all__ = ["Holding", "chat_bound", "chat_price", "hindsight", "holding"]

Array = NDArray[np.float64]

CELL_S = 0.05
"""Seconds of a cell of age, in which 1 - G is taken as constant."""

_ROUNDS, _ROUGHLY = 1000, 200
"""With the first number the bounds are 0.1% less; the second does for the choice of a price."""


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """How the holding of one token is counted, from the end of its turn on.

    `ages` [n + 1] are seconds, from 0; `left` [n] is 1 - G in each cell between two of them, and
    `sure` [n + 1] the integral of G h up to each: up to the last all of it.
    """

    ages: Array
    left: Array
    sure: Array

    def counts(self, ages: Array, used: bool) -> Array:
        """What each of the stretches between `ages` [k + 1] brings, with a use at the last."""
        brings = np.diff(np.interp(ages, self.ages, self.sure))
        cell = int(np.searchsorted(self.ages, ages[-1])) - 1
        if used and cell < len(self.left):
            brings[-1] += self.left[cell]
        return brings


@functools.cache
def holding(law: Again, price: float) -> Holding:
    """For a log-normal wait, the worth of a token that costs `price` for each second.

    That is the most, over all times to let go, of the chance of a use until then less the price
    of the time that it is held, given that it has not been used so far.
    """
    assert law.chance < 1
    ages = CELL_S * np.arange(int(law.median * math.exp(4.5 * law.spread) / CELL_S) + 1)
    late = np.log(ages[1:-1] / law.median) / (law.spread * math.sqrt(2))
    ended = np.array([0.0, *(math.erfc(-x) / 2 for x in late), 1.0])
    there = 1 - law.chance * ended
    brings = law.chance * ended - np.cumsum(np.append(0, there[1:] + there[:-1]) / 2) * (
        price * CELL_S
    )
    worth = (np.maximum.accumulate(brings[::-1])[::-1] - brings) / there
    left: Array = (worth[1:] + worth[:-1]) / 2
    sure = np.append(0, np.cumsum((left - 1) * np.diff(np.log(there))))
    return Holding(ages.astype(np.float64), left, sure)


class _Rows:
    """What may be held: a row is some room, from a step to the next that uses what it holds, or to
    the end. Whatever is kept through the steps between brings something until the next one."""

    def __init__(self, rows: Iterable[tuple[int, int, Array]], steps: int) -> None:
        """Rows: the step after which they are held, their room in tokens, and what each of these
        brings from there to the next step, from that to the one after, and so on."""
        self.surely = 0.0
        self.steps = steps
        kept = []
        for start, room, brings in rows:
            self.surely += room * brings[0]  # no step lies between: they are held anyhow
            if len(brings) > 1:
                kept.append((start, room, brings[1:]))
        lengths = np.array([len(brings) for _, _, brings in kept], dtype=np.int64)
        self.room = np.array([room for _, room, _ in kept], dtype=np.float64)
        self.start = np.array([start for start, _, _ in kept], dtype=np.int64)
        self.first = np.cumsum(lengths) - lengths
        self.row = np.repeat(np.arange(len(kept)), lengths)
        self.step = np.arange(len(self.row)) - self.first[self.row] + self.start[self.row] + 1
        sums = [np.cumsum(brings) for _, _, brings in kept]
        self.brought = np.concatenate(sums) if sums else np.empty(0)

    def best(self, price: Array) -> tuple[float, Array]:
        """At a price [steps] of a token's room through each step, what the rows bring after it,
        each of them let go when it is best; and the room taken through each step."""
        paid = np.cumsum(price)
        after = self.brought - (paid[self.step] - paid[self.start][self.row])
        value = np.maximum.reduceat(after, self.first)
        at = np.flatnonzero(after == value[self.row])
        last = np.empty(len(value), dtype=np.int64)
        last[self.row[at]] = self.step[at]
        worth = value > 0
        change = np.bincount(self.start[worth] + 1, self.room[worth], self.steps + 1)
        change -= np.bincount(last[worth] + 1, self.room[worth], self.steps + 1)
        return self.surely + float(self.room[worth] @ value[worth]), np.cumsum(change[:-1])

    def most(self, room: Array, rounds: int) -> float:
        """At least the most that the rows bring with so much `room` [steps] beside each step.

        At any prices it is no more than the best after the price, and the price of the room
        (Lagrange). They are raised where more is kept than there is room for, lowered where less.
        """
        if not len(self.row):
            return self.surely
        ends = self.brought[np.append(self.first[1:], len(self.row)) - 1]
        even = float(self.room @ ends / self.room[self.row].sum())
        least, price, trend = self.best(np.zeros(self.steps))[0], np.full(self.steps, even), 0.0
        for turn in range(rounds):
            best, kept = self.best(price)
            least = min(least, best + float(price @ room))
            trend = 0.8 * trend + (kept - room) / room.mean()
            price = np.maximum(0, price + even / 2 / (1 + turn / 50) ** 0.7 * trend)
        return least


@dataclass(frozen=True, slots=True)
class _Left:
    """What a step leaves: after which, the step that uses it, where it begins and ends in the text,
    and the law of a wait; None for a system message, which is taken as if the cache knew when it is
    used."""

    start: int
    use: int | None
    begin: int
    end: int
    law: Again | None

    def parts(self, page: int) -> list[tuple[int, int]]:
        """Tokens that are held together or not at all, and the room that they need."""
        tokens, last = self.end - self.begin, self.end % page
        if self.law is None or last == 0 or tokens <= page:
            return [(tokens, tokens)]
        return [(tokens - last, tokens - last), (last, page)]


def _uses(steps: Sequence[Step]) -> Iterable[_Left]:
    following: dict[object, int] = {}
    for turn in range(len(steps) - 1, -1, -1):
        step = steps[turn]
        talk = step.session.split(".")[0]
        if step.again is not None and step.again.chance > 0:
            end = len(step.prompt) + len(step.output) - 1
            yield _Left(turn, following.get(talk), step.shared, end, step.again)
        if step.prompt[0] in following:
            yield _Left(turn, following[step.prompt[0]], 0, step.shared, None)
        following[talk] = following[step.prompt[0]] = turn


def hindsight(
    steps: Sequence[Step],
    capacity: int,
    holdings: Callable[[Again], Holding],
    rounds: int = _ROUNDS,
    page: int = 1,
) -> float:
    """The bound, with the count that `holdings` gives for each law of a wait.

    Holding some tokens of a part (`_Left.parts`) is no better than the better of all of it and
    nothing: what they bring is a number of tokens times the same, and the room that they take at
    least as large a share of the part's.
    """
    times = np.array([*(step.at for step in steps), math.inf])

    def rows() -> Iterable[tuple[int, int, Array]]:
        for left in _uses(steps):
            brings = counts(left)
            for tokens, needs in left.parts(page):
                yield left.start, needs, brings * (tokens / needs)

    def counts(left: _Left) -> Array:
        start, use = left.start, left.use
        if left.law is None:
            assert use is not None
            return np.eye(1, use - start, use - start - 1)[0]
        held = holdings(left.law)
        # After the last age nothing more is counted.
        end = int(np.searchsorted(times, times[start] + held.ages[-1]))
        ages = times[start : min(len(steps) if use is None else use, end) + 1] - times[start]
        return held.counts(ages, use is not None and use <= end)

    running = (-(-(len(step.prompt) + len(step.output) - 1) // page) for step in steps)
    room = [capacity - page * pages for pages in running]
    return _Rows(rows(), len(steps)).most(np.array(room, dtype=np.float64), rounds)


def chat_bound(
    steps: Sequence[Step], capacity: int, price: float, page: int = 1, rounds: int = _ROUNDS
) -> float:
    """The bound, with a token's worth at so much for each second; any `price` that was chosen
    before the trace gives one."""
    return hindsight(steps, capacity, lambda law: holding(law, price), rounds, page)


def chat_price(traces: Sequence[Sequence[Step]], capacity: int, page: int = 1) -> float:
    """The price that makes the mean of `chat_bound` over traces small; they must be others than
    those for which it is wanted."""
    law = next(step.again for step in traces[0] if step.again is not None)
    prices = [times / law.median for times in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]

    def bound(price: float) -> float:
        return sum(chat_bound(trace, capacity, price, page, _ROUGHLY) for trace in traces)

    return min(prices, key=bound)
