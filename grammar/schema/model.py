"""The normal form of a schema: sets of values by kind, whose parts are states.

What lives here: the kinds. What does not: how they are found (build.py) or written (emit.py).
A state's set is the union of its kinds; parts name states, so recursion is no problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from phloem.grammar.regex.nodes import Node
from phloem.grammar.schema.flat import Range, State

__all__ = [
    "Arrays",
    "Counted",
    "Item",
    "KeyClass",
    "Kind",
    "Literals",
    "Member",
    "Model",
    "Numbers",
    "Objects",
    "Strings",
]


@dataclass(frozen=True, slots=True)
class Literals:
    """These values and no others, each as JSON text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers in a range. `whole`: integers only; `fractional`: no integers."""

    whole: bool
    fractional: bool
    range: Range
    multiples: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings by length in code points and by languages, all of which hold them."""

    min_length: int
    max_length: int | None
    languages: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """Items of an array that count 1 or 0 for each demand on their number."""

    state: State
    hits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """Demands on numbers of items, as bounds, and the items at each place, then behind them."""

    bounds: tuple[tuple[int, int | None], ...]
    places: tuple[tuple[Item, ...], ...]

    def at(self, index: int) -> tuple[Item, ...]:
        """The items that may stand at `index`."""
        return self.places[min(index, len(self.places) - 1)]


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays: items by position, then `rest` (None: no more items). Where they are `counted`, that
    alone says what they are."""

    prefix: tuple[State, ...]
    rest: State | None
    min_items: int
    max_items: int | None
    unique: bool
    counted: Counted | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A member known by name."""

    name: str
    state: State
    required: bool


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Members whose names are in `language` (None: any name), except `taken` ones."""

    language: Node | None
    taken: tuple[str, ...]
    state: State


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects: `members` in their order, then any others by class; counts over both.

    One of the others at least must be in `needed`, where that is given.
    """

    members: tuple[Member, ...]
    others: tuple[KeyClass, ...]
    min_members: int
    max_members: int | None
    needed: KeyClass | None = None


Kind = Literals | Numbers | Strings | Arrays | Objects


@dataclass(frozen=True, slots=True)
class Model:
    """All reachable states with their kinds; every state here has at least one value."""

    start: State
    kinds: dict[State, tuple[Kind, ...]]
