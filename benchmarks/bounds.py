"""What no cache can reuse more of, on average, that doesn't see the future.

What lives here: for the two shapes in which strangers decide what comes, bounds that hold for every
cache of so many tokens, of whatever rule, that knows all laws and all that has come but not
the draws to come: `few_shot_bound` and `chat_bound`. What does not: the bound for caches that
see the future (`traces.best_hits`), and the traces.

Each is a number for a trace whose mean over traces is at least the mean reuse: what came is taken
as it came, what was to come by its chance. A cache is taken as in `best_hits`: single tokens, and
the running step's own must be there while it runs. It may keep any tokens (a token without those
before it is of no use to a real one), and knows the chances from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces import Again, Step

__all__ = ["chat_bound", "chat_price", "few_shot_bound", "hold"]

Array = NDArray[np.float64]


def few_shot_bound(steps: Sequence[Step], capacity: int, every: float) -> float:
    """For requests that are independent of each other: one comes every `every` seconds, with a text
    of the step's `shared` tokens, used at its `rate`.

    The next request uses text j with chance p(j), whatever came. So no cache can expect more of it
    than the greatest sum of p(j) x(j), x(j) being the tokens of j that it may hold now: no more
    than the text has, none before its first use, and, for each earlier step, of texts not used from
    that step on no more in all than there was room for beside it (they were not computed since).
    These sets lie within each other, so taking the likeliest texts first gives the greatest sum
    (Edmonds 1971; without the running step it is Aho, Denning and Ullman's A0, 1971).
    """
    total = 0.0
    last: dict[int, int] = {}
    texts: dict[int, tuple[float, int]] = {}
    rooms: list[int] = []
    for turn, step in enumerate(steps):
        left = np.array(rooms, dtype=np.float64)
        for text, (chance, size) in sorted(texts.items(), key=lambda item: -item[1][0]):
            since = left[last[text] + 1 :]
            held = min(float(size), float(since.min()) if len(since) else math.inf)
            since -= held
            total += chance * held
        name = step.prompt[0]
        texts[name] = (step.rate * every, step.shared)
        last[name] = turn
        rooms.append(max(0, capacity - len(step.prompt) - len(step.output) + 1))
    return total


@dataclass(frozen=True, slots=True)
class Hold:
    """For each start: the most that holding one token from then on brings after its price, and the
    part of it that is expected to be held in each of the cells of time after it."""

    value: Array
    held: Array


def hold(
    starts: NDArray[np.int64], price: Array, chances: Array, ends: Array, waits: Array
) -> Hold:
    """A token that is used again with a chance, after a wait, brings 1 if it is still held then.

    It is let go at some time and never comes back by itself, so a rule is a time at which to let
    go; the best of them is taken. `starts` [n] are cells of time, `price` what holding costs for
    each cell, `chances` [n]. The wait has ended by the end of its cell i with chance `ends[i]`,
    and has ended, in the mean over that cell, with chance `waits[i]`.
    """
    cells = len(waits)
    padded = np.concatenate([price, np.zeros(cells)])
    prices = np.lib.stride_tricks.sliding_window_view(padded, cells)[starts]
    there = 1 - chances[:, None] * waits
    gains = chances[:, None] * ends - np.cumsum(prices * there, axis=1)
    best = gains.argmax(axis=1)
    value = gains[np.arange(len(starts)), best]
    until = np.where(value > 0, best, -1)
    return Hold(np.maximum(value, 0.0), there * (np.arange(cells) <= until[:, None]))


CELL_S = 0.5
"""Seconds of a cell of time. The sums over cells stand for integrals; with half as much the bounds
change by less than 0.1%."""

_SEGMENT = 20
"""Cells that have one price."""


def waiting(law: Again) -> tuple[Array, Array]:
    """`ends` and `waits` of `hold` for a log-normal time."""

    def ended(at: Array) -> Array:
        late = np.log(at / law.median) / law.spread
        return np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in late])

    cells = int(law.median * math.exp(4.5 * law.spread) / CELL_S)
    ends = ended(CELL_S * np.arange(1, cells + 1))
    fine = ended(CELL_S / 8 * (np.arange(8 * cells) + 0.5)).reshape(cells, 8)
    return ends, fine.mean(axis=1)


class _Chat:
    """A trace of conversations, seen as what may be held and what for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        again = [step for step in steps if step.again is not None and step.again.chance > 0]
        law = again[0].again
        assert law is not None
        self.law = law
        self.starts = np.array([int(step.at / CELL_S) for step in again])
        self.chances = np.array([step.again.chance for step in again if step.again is not None])
        own = [len(step.prompt) + len(step.output) - 1 - step.shared for step in again]
        self.own = np.array(own, dtype=np.float64)
        # The system messages, by their first token: size, and the cell of their first use.
        shared: dict[int, tuple[int, int]] = {}
        for step in steps:
            shared.setdefault(step.prompt[0], (step.shared, int(step.at / CELL_S)))
        self.shared = list(shared.values())
        self.rate = steps[0].rate
        self.uses = sum(step.shared for step in steps) - sum(size for size, _ in self.shared)
        news = [step for step in steps if step.session.endswith(".0")]
        self.last_new = int(news[-1].at / CELL_S)
        fresh = [len(step.prompt) + len(step.output) - 1 - step.shared for step in news]
        self.first = float(np.mean(fresh)) + float(np.mean([size for size, _ in self.shared]))
        self.cells = int(steps[-1].at / CELL_S) + 1

    def room(self, capacity: int, cells: int) -> Array:
        """Tokens that may be held in each cell, a share of the system messages among them."""
        room = np.full(cells, float(capacity))
        room[: self.last_new] -= self.first
        return room

    def messages(self, cells: int) -> Array:
        """Tokens of system messages in each cell, as far as they are charged."""
        held = np.zeros(cells)
        for size, first in self.shared:
            held[first : self.last_new] += size * (1 - 1 / len(self.shared))
        return held


def chat_bound(steps: Sequence[Step], capacity: int, price: Array) -> float:
    """For conversations that are independent of each other; any `price` of a token in each
    cell of time (not negative, chosen before the trace) gives a bound.

    No cache holds more than `capacity` tokens at any time, so at any prices it reuses no more than
    the most that can be reused less the price of what is held, plus the price of all the room
    (Lagrange; the relaxation is Whittle's, 1988). At a price for each token all tokens are held or
    let go each for itself, which `hold` solves: a token of a conversation waits for the next turn,
    and when that comes it is there again whether it was held or not. Holding a part of a
    conversation is no better than the better of all and nothing, since both gain and price are a
    number of tokens times the same.

    New conversations come at random times that tell nothing of what is held (Poisson arrivals see
    time averages, Wolff 1982), and beside the first step of one there is room for so many tokens
    less: those it needs itself, of which its system message may be held already. A system message
    is used at least at the rate of new conversations, whatever came; while the price is below
    that, holding it always is best. After the last new conversation it is not charged for.
    """
    trace = _Chat(steps)
    assert price.max(initial=0) < CELL_S * trace.rate / (1 - 1 / len(trace.shared))
    held = hold(trace.starts, price, trace.chances, *waiting(trace.law))
    room = trace.room(capacity, len(price)) - trace.messages(len(price))
    return float(trace.uses + trace.own @ held.value + price @ room)


def chat_price(traces: Sequence[Sequence[Step]], capacity: int, rounds: int = 100) -> Array:
    """Prices that make the mean of `chat_bound` over traces (others than those it is wanted for)
    small: raised where more is held than there is room for, lowered where less is."""
    seen = [_Chat(steps) for steps in traces]
    waits = waiting(seen[0].law)
    cells = max(trace.cells for trace in seen) + len(waits[0])
    segment = np.arange(cells) // _SEGMENT
    room = sum(trace.room(capacity, cells) for trace in seen)
    most = 0.9 * CELL_S * seen[0].rate
    prices = np.full(segment[-1] + 1, most / 4)
    best, least = prices, math.inf
    for turn in range(rounds):
        price = prices[segment]
        wanted = sum(trace.messages(cells) for trace in seen)
        bound = price @ (room - wanted)
        for trace in seen:
            found = hold(trace.starts, price, trace.chances, *waits)
            bound += trace.own @ found.value
            at = trace.starts[:, None] + np.arange(len(waits[0]))
            weights = (found.held * trace.own[:, None]).ravel()
            wanted = wanted + np.bincount(at.ravel(), weights, minlength=cells)[:cells]
        if bound < least:
            best, least = price, float(bound)
        over = np.bincount(segment, wanted) / np.bincount(segment, room)
        prices = prices * np.clip(over, 0.1, 10) ** (0.7 / (1 + turn / 15))
        prices = np.clip(prices, most * 1e-4, most)
    return best
