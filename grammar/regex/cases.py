"""Which characters are the same but for case, as Python's `re` sees it under the flag i.

What lives here: `with_cases`. What does not: where the flag holds (parser.py).

`re` compares the lower-case forms of single characters, and takes different lower-case characters
for the same if their upper-case forms are ("s" and U+017F). Folding to several characters ("ß" and
"ss") has no place in it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

__all__ = ["with_cases"]

_DOTTED_I = 0x130
"""The only character whose lower-case form is two: `re` takes the first of them."""
_CASED = 0x20000
"""From here on no character has a case."""


def with_cases(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of code points, and those of all that are the same as one in them but for case."""
    others = _others()
    found = list(ranges)
    for low, high in ranges:
        # The shorter of the two: most ranges are one character.
        codes = range(low, high + 1) if high - low < len(others) else others
        for code in codes:
            if low <= code <= high:
                found.extend((other, other) for other in others.get(code, ()))
    return found


@functools.cache
def _others() -> dict[int, tuple[int, ...]]:
    """Code point -> the others that are the same but for case."""
    by_lower: dict[str, list[int]] = defaultdict(list)
    by_upper: dict[str, set[str]] = defaultdict(set)
    for code in range(_CASED):
        lower, upper = _lower(code), chr(code).upper()
        if lower != chr(code) or upper != chr(code):
            by_lower[lower].append(code)
            by_upper[lower.upper()].add(lower)
    found: dict[int, tuple[int, ...]] = {}
    for alike in by_upper.values():
        codes = [code for lower in alike for code in by_lower[lower]]
        for code in codes:
            found[code] = tuple(other for other in codes if other != code)
    return found


def _lower(code: int) -> str:
    return "i" if code == _DOTTED_I else chr(code).lower()
