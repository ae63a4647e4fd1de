"""How a download tells its caller how far it is.

What lives here: `Progress`, a frozen record, and the type of the callback. What does not:
drawing it (`server/cli`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["OnProgress", "Progress", "ignore"]


@dataclass(frozen=True, slots=True)
class Progress:
    """`phase` is "downloading", "verifying" or "unpacking"; `done` and `total` are bytes.

    `total` is None while it is unknown.
    """

    phase: str
    done: int = 0
    total: int | None = None


OnProgress: TypeAlias = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Tell nobody."""
