"""What a session is opened with, on whatever engine.

What lives here: `Place` and the places of a session's forks. What does not: sessions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phloem.runtime.rules import require

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """The arguments of `Backend.open`, which says what they mean.

    Raises `ConfigError` that names the one that is of a wrong kind: engines sort by them.
    """

    id: str
    namespace: str = ""
    deadline: float | None = None
    priority: int = 0
    branch: str = ""

    def __post_init__(self) -> None:
        rules = [
            ("namespace", isinstance(self.namespace, str), "a text"),
            ("branch", isinstance(self.branch, str), "a text"),
            ("priority", isinstance(self.priority, int), "a whole number"),
            ("deadline", _is_instant(self.deadline), "a time.monotonic() instant, or None"),
        ]
        require(self, rules)

    def forks(self, first: int, n: int, branches: Sequence[str] | None) -> list[Place]:
        """Where the forks `first` to `first + n` (half-open) of a session here are opened."""
        numbers = range(first, first + n)
        keys = branches or [f"{self.branch}.{i}" for i in numbers]
        return [
            replace(self, id=f"{self.id}.{number}", branch=key)
            for number, key in zip(numbers, keys, strict=True)
        ]


def _is_instant(deadline: object) -> bool:
    return deadline is None or (isinstance(deadline, int | float) and not math.isnan(deadline))
