"""How often new sessions come by a page, as far as the past tells.

What lives here: `Arrivals`, which learns from those that nobody foretold. What does not: sessions
that wait or that are gone on from, which are foretold (`forecast.py`).

The model is the one of customers who buy again and again until they stay away for good: each page
is visited at a rate of its own, rates differ between pages by a gamma distribution, and after each
visit there is a chance that it was the last (BG/NBD, Fader, Hardie and Lee 2005). Most pages are
never visited by a second session, so a new page is worth little; one that was visited often is
worth its rate; one that is overdue by many times its own interval is worth nothing, soon.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from phloem.runtime.engine.radix_tree import Node

__all__ = ["Arrivals"]

_SHAPE = 0.01
"""A page without any visit counts as one with so many: how much rates differ."""

_LAST = 0.05
"""The odds that a visit was the last."""

_DECAY = 0.95
"""What is known counts so much less after each visit: the last 20 decide."""

_LOST = 1e3
"""So many times overdue is as good as for ever."""

_USUAL = 0.001
"""Weight of one wait in the usual wait."""


class Arrivals:
    """Rates of all pages, also of `remembered` pages that were given up. `now` is a clock in
    seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float], remembered: int) -> None:
        self._now = now
        self._remembered = remembered
        self._usual = 1.0
        """Seconds between two visits, over all pages that have any."""
        # By the chained hash: visits, the seconds that they span, and when the last one was.
        self._gone: OrderedDict[int, tuple[float, float, float]] = OrderedDict()

    def entered(self, node: Node) -> None:
        """A page is cached: for the first time, or again."""
        known = self._gone.pop(node.chain, None)
        node.visits, node.span, node.seen = known or (0.0, 0.0, self._now())

    def left(self, node: Node) -> None:
        """A page is given up; what is known of it is kept for a while."""
        self._gone[node.chain] = (node.visits, node.span, node.seen)
        if len(self._gone) > self._remembered:
            self._gone.popitem(last=False)

    def came(self, nodes: Sequence[Node], missed: Sequence[int]) -> None:
        """A new session comes by pages, and would come by those of the hashes `missed`, if they
        were still there."""
        for node in nodes:
            node.visits, node.span, node.seen = self._visit(node.visits, node.span, node.seen)
        for chain in missed:
            known = self._gone.get(chain)
            if known is not None:
                self._gone[chain] = self._visit(*known)

    def _visit(self, visits: float, span: float, seen: float) -> tuple[float, float, float]:
        now = self._now()
        wait = now - seen
        self._usual += _USUAL * (wait - self._usual)
        return visits * _DECAY + 1, span * _DECAY + wait, now

    def rate(self, node: Node) -> float:
        """Visits of a page to expect, per second."""
        known = self._usual + node.span
        watched = known + self._now() - node.seen
        visits = _SHAPE + node.visits
        rate = visits / watched
        if node.visits:
            rate /= 1 + _LAST * min(watched / known, _LOST) ** visits
        return rate
