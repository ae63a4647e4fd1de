"""The order in which pages are given up.

What lives here: `EvictionOrder`, the candidates of one tier by rank. What does not: what a rank
is made of and what giving up means (`radix_cache.py`).

A candidate whose rank changes is offered again, and entries that are not its latest are skipped as
they surface. A rank that rests on an expected time is outdated after a while: such candidates
stand in a second heap too, by when they are to be ranked anew.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

from phloem.runtime.engine.radix_tree import Node, Rank

__all__ = ["EvictionOrder"]

_FRESH = 1 / 8
"""Ranks are good for such a part of the time to the next use: the chance of that changes with age,
and a claim that it has outlived holds a page that is worth more to another."""

_SOONEST_S = 0.25
"""Ranks are good for so long at least."""

_SLACK = 1024
"""Outdated entries that are kept at least, before the heaps are cleaned."""


class EvictionOrder:
    """Candidates for which `evictable` holds, by `rank_of`: (minus the seconds until the next use,
    last use), smallest first. Not thread-safe."""

    def __init__(
        self,
        evictable: Callable[[Node], bool],
        rank_of: Callable[[Node], Rank],
        clock: Callable[[], float],
    ) -> None:
        self._evictable = evictable
        self._rank_of = rank_of
        self._clock = clock
        self._ties = itertools.count()
        self._heap: list[tuple[Rank, int, Node]] = []
        self._due: list[tuple[float, int, Node, Rank]] = []
        self._cleaned = 0

    def offer(self, node: Node) -> None:
        """Consider a node, or consider it again, if it is evictable."""
        if not self._evictable(node):
            return
        rank = node.rank = self._rank_of(node)
        heapq.heappush(self._heap, (rank, next(self._ties), node))
        if 0 < -rank[0] < math.inf:  # one whose use is due at once is offered again after it
            due = self._clock() + max(-rank[0] * _FRESH, _SOONEST_S)
            heapq.heappush(self._due, (due, next(self._ties), node, rank))
        if len(self._heap) > 2 * self._cleaned + _SLACK:
            self._clean()

    def take(self) -> Node | None:
        """The next to go; None if there is none. It stands in the order no more."""
        now = self._clock()
        while self._due and self._due[0][0] < now:
            _, _, node, rank = heapq.heappop(self._due)
            if node.rank is rank:
                self.offer(node)
        while self._heap:
            rank, _, node = heapq.heappop(self._heap)
            if node.rank is rank and self._evictable(node):
                return node
        return None

    def standing(self) -> set[Node]:
        """The candidates, some of which may not be evictable any more (for the audit)."""
        return {node for rank, _, node in self._heap if node.rank is rank}

    def _clean(self) -> None:
        """Drop the outdated entries: a pool that is never full evicts nothing."""
        self._heap = [e for e in self._heap if e[2].rank is e[0] and self._evictable(e[2])]
        heapq.heapify(self._heap)
        latest = {id(rank) for rank, _, _ in self._heap}
        self._due = [e for e in self._due if id(e[3]) in latest]
        heapq.heapify(self._due)
        self._cleaned = len(self._heap)
