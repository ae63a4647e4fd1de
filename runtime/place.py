"""What a session is opened with, on whatever engine.

What lives here: `Place` and the places of a session's forks. What does not: sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """The arguments of `Backend.open`, which says what they mean."""

    id: str
    namespace: str = ""
    deadline: float | None = None
    priority: int = 0
    branch: str = ""

    def forks(self, first: int, n: int, branches: Sequence[str] | None) -> list[Place]:
        """Where the forks `first` to `first + n` (half-open) of a session here are opened."""
        numbers = range(first, first + n)
        keys = branches or [f"{self.branch}.{i}" for i in numbers]
        return [
            replace(self, id=f"{self.id}.{number}", branch=key)
            for number, key in zip(numbers, keys, strict=True)
        ]
