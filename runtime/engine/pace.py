"""How fast passes with prompts in them are, as measured.

What lives here: `Pace`. What does not: the chunks that are cut by it (`batching.py`).

A pass of n rows takes a + b·n, so rows per millisecond grow with n. Chunks cut by the rate of the
last ones still settle at the length that takes the time allowed, where a + b·n = T: one that is
shorter measures a rate by which the next is longer.
"""

from __future__ import annotations

__all__ = ["Pace"]

_WEIGHT = 0.3
"""Of the latest pass in the average."""


class Pace:
    """A moving average over passes."""

    def __init__(self) -> None:
        self.rows_per_ms: float | None = None

    def measure(self, rows: int, ms: float) -> None:
        """A pass of `rows` rows took `ms` milliseconds."""
        rate = rows / max(ms, 1e-3)
        if self.rows_per_ms is None:
            self.rows_per_ms = rate
        else:
            self.rows_per_ms += _WEIGHT * (rate - self.rows_per_ms)

    def rows_within(self, ms: float) -> int:
        """How many rows a pass of `ms` milliseconds may have; 0 before anything is measured."""
        return int(ms * self.rows_per_ms) if self.rows_per_ms is not None else 0
