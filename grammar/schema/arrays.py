"""Flats -> kinds of arrays: items by position, then the rest.

What lives here: which state each item must be in, and the spreading of "some item must ..." over
the places where it can be met. What does not: the rules that write an array (emit.py).
"""

from __future__ import annotations

import itertools

from phloem.errors import ConstraintError
from phloem.grammar.schema.flat import Flat, Op, State, joined
from phloem.grammar.schema.model import Arrays
from phloem.grammar.schema.objects import States

__all__ = ["array_kinds"]

_MAX_WAYS = 64
_REST = -1


def array_kinds(states: States, flat: Flat) -> list[Arrays]:
    """The arrays of one flat."""
    length = max((len(group.prefix) for group in flat.arrays), default=0)
    prefix = [
        joined(
            group.prefix[index] if index < len(group.prefix) else group.rest
            for group in flat.arrays
        )
        for index in range(length)
    ]
    rest = joined(group.rest for group in flat.arrays)
    places = [_places(states, op, prefix, rest, flat.max_items) for op in flat.contains]
    ways = list(itertools.islice(itertools.product(*places), _MAX_WAYS + 1))
    if len(ways) > _MAX_WAYS:
        raise ConstraintError("'contains' with so many ways to be met can't be enforced")
    return [_way(flat, tuple(prefix), rest, way) for way in ways]


def _places(
    states: States, op: Op, prefix: list[State], rest: State, most: int | None
) -> list[tuple[Op, int]]:
    """Where an item that satisfies `op` may stand: positions, or somewhere in the rest."""
    found = [
        (op, index)
        for index, state in enumerate(prefix)
        if (most is None or index < most) and not states.void(joined((*state, op)))
    ]
    roomy = most is None or most > len(prefix)
    if roomy and not states.void(joined((*rest, op))):
        found.append((op, _REST))
    return found


def _way(
    flat: Flat, prefix: tuple[State, ...], rest: State, way: tuple[tuple[Op, int], ...]
) -> Arrays:
    """The arrays in which each of the `contains` is met at its place."""
    items = list(prefix)
    least = flat.min_items
    wanted = [op for op, place in way if place == _REST]
    if len(wanted) > 1:
        raise ConstraintError("two 'contains' for the same items can't be enforced together")
    for op, place in way:
        if place != _REST:
            items[place] = joined((*items[place], op))
            least = max(least, place + 1)
    contains = joined((*rest, *wanted)) if wanted else None
    least = max(least, len(items) + 1) if wanted else least
    return Arrays(tuple(items), rest, least, flat.max_items, flat.unique, contains)
