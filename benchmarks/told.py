"""What the prefix cache would keep if it were told the laws by which strangers come.

What lives here: `Told`, a forecast that knows the chances from which a trace was drawn where the
engine's has to learn them: how often sessions come by a shared text, the chance that a conversation
has another turn, and how long its user thinks. It doesn't know the draws. What does not: traces
(`traces.py`), and the bound that knows the draws too (`traces.best_hits`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.traces import Again, Step
from phloem.runtime.engine.forecast import Forecast, Interest
from phloem.runtime.engine.radix_tree import Node

__all__ = ["Told"]


class Told(Forecast):
    """The rates of the steps that were told of so far; `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now, 0)
        # Text that is shared occurs nowhere else: its tokens stand for it.
        self._shared: dict[int, float] = {}
        self._again: dict[Interest, Again] = {}

    def tell(self, step: Step, interest: Interest) -> None:
        """The laws of what follows a step; call it before the session's end is told."""
        self._shared.update(dict.fromkeys(step.prompt[: step.shared], step.rate))
        if step.again is not None:
            self._again[interest] = step.again

    def remaining(self, node: Node) -> float:
        """Seconds until a page is used, over the chance of that."""
        rate = self._shared.get(node.tokens[-1], 0.0)
        rate += sum(1 / max(self.of_session(interest), 1e-3) for interest in node.interests)
        return 1 / rate if rate else math.inf

    def of_session(self, interest: Interest) -> float:
        """Seconds until somebody goes on from a session that ended, over the chance."""
        law = self._again.get(interest)
        if not interest.ended or law is None:
            return super().of_session(interest)
        age = self.now() - interest.since
        mean, staying = math.exp(math.log(law.median) + law.spread**2 / 2), 1.0
        if age > 0:
            late = math.log(age / law.median) / law.spread
            staying = _normal(-late)
            mean *= _normal(law.spread - late)
        if law.chance * staying < 1e-9:
            return math.inf
        comes = law.chance * staying / (law.chance * staying + 1 - law.chance)
        return (mean / staying - age) / comes


def _normal(x: float) -> float:
    """The chance that a standard normal variable is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2
