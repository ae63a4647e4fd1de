"""What the engine counts.

What lives here: `Stats` and `Histogram`, plain numbers that the engine's thread adds to and others
read. What does not: their names and format for a scraper (`runtime/metrics.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from phloem.programs.protocol import Usage

__all__ = ["Histogram", "Stats"]


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each of `bounds`, ascending, and above; in seconds here.

    `counts` has how many values lie in each interval (last bound, bound].
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _first_tokens() -> Histogram:
    return Histogram((0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60))


def _tokens() -> Histogram:
    return Histogram((0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5))


@dataclass(slots=True)
class Stats:
    """Counters since the start, and how things stand now.

    `rows` entered the decoder in `passes` forward passes; `shrunk` counts those that were tried
    again smaller, for lack of memory. `usage` adds up all jobs that ran, also those that ended
    early; `errors` counts by class. `first_token_s` counts from a step's arrival, `queue_s` from
    there to its start, `inter_token_s` from one token to the next (tokens that come together
    share the time).
    """

    passes: int = 0
    rows: int = 0
    suspended: int = 0
    shrunk: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    evicted_pages: int = 0
    offloaded_pages: int = 0
    restored_pages: int = 0
    usage: Usage = Usage()
    errors: Counter[str] = field(default_factory=Counter)
    first_token_s: Histogram = field(default_factory=_first_tokens)
    inter_token_s: Histogram = field(default_factory=_tokens)
    queue_s: Histogram = field(default_factory=_first_tokens)
    # Now
    running: int = 0
    queued: int = 0
    pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    pinned_pages: int = 0
    host_pages: int = 0
    free_host_pages: int = 0
