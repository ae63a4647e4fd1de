"""A limit on requests per minute for each caller.

What lives here: a token bucket per caller. What does not: who the caller is (`gatekeeper.py`)
and how many may run at once (`admission.py`).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["RateLimit"]

REMEMBERED = 10_000
"""Callers kept; a forgotten one starts with a full bucket, which is what idling gives too."""


class RateLimit:
    """`per_minute` requests on average, as many at once after a pause. 0 lets all pass."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> int:
        """0 if `caller` may go on (and is counted), else the whole seconds to wait."""
        if self._per_minute == 0:
            return 0
        now = self._clock()
        rate = self._per_minute / 60
        level, at = self._buckets.pop(caller, (float(self._per_minute), now))
        level = min(self._per_minute, level + (now - at) * rate)
        allowed = level >= 1
        self._buckets[caller] = (level - 1 if allowed else level, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return 0 if allowed else math.ceil((1 - level) / rate)
