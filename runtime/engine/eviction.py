"""The order in which pages are given up.

What lives here: `EvictionOrder`, the candidates of one tier by rank. What does not: what a rank
is made of and what giving up means (`radix_cache.py`).

Ranks change while a candidate stands in the heap; a candidate is then offered again, and entries
that are not its latest are skipped as they surface. A rank that rests on an expected use is
reckoned anew once that time has passed: such candidates surface in a second heap, by that time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

from phloem.runtime.engine.radix_tree import Node, Rank

__all__ = ["EvictionOrder"]

_SLACK = 1024
"""Outdated entries that are kept at least, before the heaps are cleaned."""


class EvictionOrder:
    """Candidates for which `evictable` holds, by `rank_of`: (minus the expected time of the next
    use, last use), smallest first. Not thread-safe."""

    def __init__(self, evictable: Callable[[Node], bool], rank_of: Callable[[Node], Rank]) -> None:
        self._evictable = evictable
        self._rank_of = rank_of
        self._ties = itertools.count()
        self._heap: list[tuple[Rank, int, Node]] = []
        self._due: list[tuple[float, int, Node]] = []
        self._cleaned = 0

    def offer(self, node: Node) -> None:
        """Consider a node, or consider it again, if it is evictable."""
        if not self._evictable(node):
            return
        rank = node.rank = self._rank_of(node)
        heapq.heappush(self._heap, (rank, next(self._ties), node))
        if math.isfinite(rank[0]):
            heapq.heappush(self._due, (-rank[0], next(self._ties), node))
        if len(self._heap) > 2 * self._cleaned + _SLACK:
            self._clean()

    def take(self, now: float) -> Node | None:
        """The next to go; None if there is none. It stands in the order no more."""
        while self._due and self._due[0][0] < now:
            due, _, node = heapq.heappop(self._due)
            if node.rank is not None and node.rank[0] == -due:
                self.offer(node)
        while self._heap:
            rank, _, node = heapq.heappop(self._heap)
            if node.rank == rank and self._evictable(node):
                return node
        return None

    def _clean(self) -> None:
        """Drop the outdated entries: a pool that is never full evicts nothing."""
        self._heap = [e for e in self._heap if e[2].rank == e[0] and self._evictable(e[2])]
        heapq.heapify(self._heap)
        latest = {id(node) for _, _, node in self._heap}
        self._due = [
            e for e in self._due if id(e[2]) in latest and e[2].rank and e[2].rank[0] == -e[0]
        ]
        heapq.heapify(self._due)
        self._cleaned = len(self._heap)
