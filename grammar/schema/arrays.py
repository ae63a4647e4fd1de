"""Flats -> kinds of arrays: items by position, then the rest.

What lives here: which state each item must be in, and, where items of some kind are counted, into
which kinds the items at each place fall. What does not: the counting (counting.py) and the rules
that write an array (emit.py).
"""

from __future__ import annotations

import itertools

from phloem.errors import ConstraintError
from phloem.grammar.schema.flat import Demand, Flat, State, joined
from phloem.grammar.schema.model import Arrays, Counted, Item
from phloem.grammar.schema.objects import States

__all__ = ["array_kinds"]

_MAX_DEMANDS = 4


def array_kinds(states: States, flat: Flat) -> list[Arrays]:
    """The arrays of one flat; none if some item that is asked for can't be."""
    length = max((len(group.prefix) for group in flat.arrays), default=0)
    prefix = [
        joined(
            group.prefix[index] if index < len(group.prefix) else group.rest
            for group in flat.arrays
        )
        for index in range(length)
    ]
    rest = joined(group.rest for group in flat.arrays)
    least, most, unique = flat.min_items, flat.max_items, flat.unique
    if flat.contains:
        if len(flat.contains) > _MAX_DEMANDS:
            raise ConstraintError(
                f"more than {_MAX_DEMANDS} 'contains' for the same items can't be enforced",
                keyword="contains",
            )
        counted = Counted(
            tuple((demand.least, demand.most) for demand in flat.contains),
            tuple(_items(states, state, flat.contains) for state in (*prefix, rest)),
        )
        return [Arrays((), None, least, most, unique, counted)]
    return [Arrays(tuple(prefix), rest, least, most, unique)]


def _items(states: States, state: State, demands: tuple[Demand, ...]) -> tuple[Item, ...]:
    """The items of one place by the demands that they count for.

    For a demand with an upper bound they are told apart exactly. For the others an item that
    counts may also be taken for one that does not: fewer are then counted than there are.
    """
    found = []
    for hits in itertools.product((1, 0), repeat=len(demands)):
        ops = [
            demand.op if hit else (not demand.op[0], demand.op[1])
            for demand, hit in zip(demands, hits, strict=True)
            if hit or demand.most is not None
        ]
        inner = joined((*state, *ops))
        if not states.void(inner):
            found.append(Item(inner, hits))
    return tuple(found)
