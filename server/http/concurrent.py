"""A limit on the requests that each caller may have under way at once.

What lives here: counting them. What does not: who the caller is (`gatekeeper.py`), how often it
may call (`rate.py`) and how many requests of all callers use the engine (`admission.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Concurrent"]


class Concurrent:
    """At most `limit` requests of a caller at once; 0 lets all pass. Used on one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def one(self, caller: str) -> Iterator[bool]:
        """Count a request while the block runs. Yields whether it may go on."""
        allowed = self._limit == 0 or self._under_way[caller] < self._limit
        if not allowed:
            yield False
            return
        self._under_way[caller] += 1
        try:
            yield True
        finally:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]
