"""One alternative of a schema: a conjunction of plain facets, free of logic.

What lives here: `Flat` and the meet of its facets. What does not: how schemas become flats
(flatten.py) and what a flat allows (build.py).

A facet speaks about one kind of value and says nothing of the others, as in JSON Schema; `types`
alone says which kinds are allowed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from phloem.grammar.regex.nodes import Node
from phloem.grammar.schema.values import TYPES, common_multiple, key_of

__all__ = [
    "ArrayGroup",
    "Demand",
    "Flat",
    "ObjectGroup",
    "Op",
    "Order",
    "Range",
    "Some",
    "State",
    "has_integer",
    "joined",
]

Op = tuple[bool, int]
"""A subschema by number, to hold (True) or not to hold (False)."""
State = tuple[Op, ...]
"""A conjunction of ops: the name of a set of values."""
Order = tuple[int, ...]
"""Where in the schema's own order something was said; compared as tuples."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds, each possibly missing (None) or itself excluded (open)."""

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False

    def meet(self, other: Range) -> Range:
        """The numbers in both."""
        low, low_open = self.low, self.low_open
        if low is None or (other.low is not None and (other.low, other.low_open) > (low, low_open)):
            low, low_open = other.low, other.low_open
        high, high_open = self.high, self.high_open
        if high is None or (
            other.high is not None and (other.high, not other.high_open) < (high, not high_open)
        ):
            high, high_open = other.high, other.high_open
        return Range(low, low_open, high, high_open)

    def is_empty(self) -> bool:
        """Whether no number lies in between."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))


@dataclass(frozen=True, slots=True)
class ArrayGroup:
    """What one schema says of items: the first ones by position, and all after them."""

    prefix: tuple[Op | None, ...]
    rest: Op | None


@dataclass(frozen=True, slots=True)
class Demand:
    """At least and at most so many items are in `op`."""

    op: Op
    least: int
    most: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectGroup:
    """What one schema says of members: by name, by pattern of the name, and of all others."""

    order: Order
    named: dict[str, Op]
    patterns: tuple[tuple[str, Op], ...] = ()
    others: Op | None = None


@dataclass(frozen=True, slots=True)
class Some:
    """Some member must be in `op` whose name no `named` and no `patterns` covers.

    With `within`, the names that this pattern matches are meant instead.
    """

    op: Op
    named: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    within: str | None = None


@dataclass(slots=True)
class Flat:
    """A conjunction of facets; see the module's docstring."""

    types: frozenset[str] = frozenset(TYPES)
    literals: dict[str, Any] | None = None
    excluded: dict[str, Any] = field(default_factory=dict)
    range: Range = Range()
    multiples: tuple[Fraction, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    languages: tuple[Node, ...] = ()
    min_items: int = 0
    max_items: int | None = None
    arrays: tuple[ArrayGroup, ...] = ()
    contains: tuple[Demand, ...] = ()
    unique: bool = False
    min_members: int = 0
    max_members: int | None = None
    objects: tuple[ObjectGroup, ...] = ()
    names: tuple[Op, ...] = ()
    required: dict[str, Order] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    some: tuple[Some, ...] = ()
    blockers: tuple[tuple[str, str, str], ...] = ()
    """What can't be enforced: (keyword, JSON path, kind of value it would constrain)."""

    def copy(self) -> Flat:
        """An independent copy."""
        return dataclasses.replace(self, excluded=dict(self.excluded), required=dict(self.required))

    def allow(self, values: list[Any]) -> None:
        """Only these values."""
        keyed = {key_of(value): value for value in values}
        if self.literals is not None:
            keyed = {key: value for key, value in self.literals.items() if key in keyed}
        self.literals = keyed

    def exclude(self, values: list[Any]) -> None:
        """None of these values."""
        self.excluded.update((key_of(value), value) for value in values)

    def only(self, *kinds: str) -> None:
        """Only values of these kinds."""
        self.types &= set(kinds)

    def at_least(self, facet: str, count: int) -> None:
        """Raise a minimum: `min_length`, `min_items` or `min_members`."""
        setattr(self, facet, max(getattr(self, facet), count))

    def at_most(self, facet: str, count: int) -> None:
        """Lower a maximum; a negative one leaves nothing."""
        held = getattr(self, facet)
        setattr(self, facet, count if held is None else min(held, count))

    def settle(self) -> bool:
        """Drop the kinds that no value can have any more. False if none is left."""
        if _crossed(self.min_length, self.max_length):
            self.types -= {"string"}
        if _crossed(self.min_items, self.max_items):
            self.types -= {"array"}
        if _crossed(max(self.min_members, len(self.required)), self.max_members):
            self.types -= {"object"}
        if not self.absent.isdisjoint(self.required):
            self.types -= {"object"}
        if self.range.is_empty():
            self.types -= {"integer", "fraction"}
        if self.literals is not None:
            self.literals = {
                key: value for key, value in self.literals.items() if key not in self.excluded
            }
            return bool(self.literals) and bool(self.types)
        return bool(self.types)


def _crossed(low: int, high: int | None) -> bool:
    return high is not None and low > high


def has_integer(span: Range, multiples: tuple[Fraction, ...]) -> bool:
    """Whether an integer lies in the range that is a multiple of all of `multiples`."""
    if span.low is None or span.high is None:
        return True
    step = common_multiple((Fraction(1), *multiples))
    first = math.ceil(span.low / step) * step
    if first == span.low and span.low_open:
        first += step
    return first < span.high or (first == span.high and not span.high_open)


def joined(ops: Iterable[Op | None]) -> State:
    """The conjunction of `ops`; None stands for no demand."""
    return tuple(dict.fromkeys(op for op in ops if op is not None))
