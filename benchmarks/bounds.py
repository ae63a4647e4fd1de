"""What no cache can reuse more of, on average, if strangers' requests decide what comes.

What lives here: `few_shot_bound`, for requests that are independent of each other, and `learned`,
what can be known of the next one. What does not: the bound for conversations (`chat_bound.py`),
the one for caches that see the future (`traces.best_hits`), and the traces.

The bound is a number for a trace whose mean over traces is at least the mean reuse of every cache
of so many tokens, of whatever rule: what came is taken as it came, what was to come by its chance.
A cache is taken as in `best_hits`: single tokens, and the running step's own must be there while it
runs. It may keep any tokens (a token without those before it is of no use to a real one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces import Step

__all__ = ["Popularity", "few_shot_bound", "learned"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Popularity:
    """The chances of the next request, if texts have got the given chances in an unknown order.

    That is the exact posterior, every order being as likely as any other before the first request:
    a sum over all orders, as one over all sets of chances that the first k texts may have.
    """

    def __init__(self, chances: Sequence[float]) -> None:
        count = len(chances)
        self.chances: Array = np.sort(np.array(chances, dtype=np.float64))[::-1]
        sets = np.arange(1 << count)
        members = (sets[:, None] >> np.arange(count)) & 1
        size = members.sum(axis=1)
        at = np.zeros(len(sets), dtype=np.int64)
        for k in range(count + 1):
            at[size == k] = np.arange(np.count_nonzero(size == k))
        # For each set of k: its members, and where the sets without each of them stand.
        self._steps: list[tuple[Ints, Ints]] = []
        for k in range(1, count + 1):
            here = np.flatnonzero(size == k)
            who = np.nonzero(members[here])[1].reshape(-1, k)
            self._steps.append((who, at[here[:, None] ^ (1 << who)]))

    def after(self, counts: Sequence[int]) -> Array:
        """The chance [k] that the next request uses each of the texts that were used so often."""
        order = np.argsort(-np.array(counts), kind="stable")
        used = np.array(counts, dtype=np.float64)[order]
        # The likeliest order, the most used text with the greatest chance, weighs 1.
        logs = np.log(self.chances)
        weights = np.exp(used[:, None] * (logs - logs[: len(used), None]))
        ways = [np.ones(1)]
        for weight, (who, without) in zip(weights, self._steps, strict=False):
            ways.append((ways[-1][without] * weight[who]).sum(axis=1))
        onwards = np.ones(len(ways[-1]))  # all orders of the texts that were not used yet
        total = ways[-1].sum()
        found = np.empty(len(used))
        for k in range(len(used) - 1, -1, -1):
            who, without = self._steps[k]
            way = weights[k][who] * onwards[:, None]
            found[order[k]] = ((ways[k][without] * way) * self.chances[who]).sum() / total
            onwards = np.bincount(without.ravel(), way.ravel(), len(ways[k])).astype(np.float64)
        return found


def learned(steps: Sequence[Step], chances: Sequence[float]) -> list[dict[int, float]]:
    """Before each step, the chances that it uses each text so far (named by its first token), for a
    cache that knows the chances but not which text has which."""
    popularity = Popularity(chances)
    counts: dict[int, int] = {}
    found: list[dict[int, float]] = []
    for step in steps:
        after = popularity.after(list(counts.values())) if counts else np.empty(0)
        found.append(dict(zip(counts, after.tolist(), strict=True)))
        counts[step.prompt[0]] = counts.get(step.prompt[0], 0) + 1
    return found


def few_shot_bound(
    steps: Sequence[Step], capacity: int, chances: Sequence[Mapping[int, float]]
) -> float:
    """For requests with a text of the step's `shared` tokens, when at each step each text that was
    used before comes with the given one of `chances`, whatever the cache has done.

    With the texts' true chances it holds for caches that know them. With those of `learned` it
    holds for caches that aren't told which text is the popular one and treat all alike: these
    reuse as much in the mean over all ways to deal the chances as with any one of them.

    No cache can expect more of the next request than the greatest sum of p(j) x(j), x(j) being the
    tokens of text j that it may hold now: no more than the text has, none before its first use,
    and, for each earlier step, of texts not used from that step on no more in all than there was
    room for beside it (they were not computed since). These sets lie within each other, so taking
    the likeliest texts first gives the greatest sum (Edmonds 1971; without the running step it is
    Aho, Denning and Ullman's A0, 1971).
    """
    total = 0.0
    last: dict[int, int] = {}
    sizes: dict[int, int] = {}
    rooms: list[int] = []
    for turn, (step, chance) in enumerate(zip(steps, chances, strict=True)):
        left = np.array(rooms, dtype=np.float64)
        for text in sorted(sizes, key=chance.__getitem__, reverse=True):
            since = left[last[text] + 1 :]
            held = min(float(sizes[text]), float(since.min()) if len(since) else math.inf)
            since -= held
            total += chance[text] * held
        name = step.prompt[0]
        sizes[name], last[name] = step.shared, turn
        rooms.append(max(0, capacity - len(step.prompt) - len(step.output) + 1))
    return total
