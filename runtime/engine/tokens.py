"""Runs of token ids, as plain values.

What lives here: what two runs have in common, and a choice's run. What does not: anything that
computes on them. Nothing here needs torch: sessions whose engine is another process use it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Choice", "common_prefix"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice's text, and its tokens after the prefix of all choices."""

    text: str
    tokens: list[int]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items `a` and `b` share."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
