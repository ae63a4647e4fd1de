"""The syntax tree of a regular expression.

What lives here: the nodes and a few questions about them. What does not: reading (parser.py),
rewriting (resolve.py) and writing (emit.py) them.

`Chars`, `Cat`, `Alt`, `Rep` describe a language outright. `Look` and `Edge` are assertions, which
`resolve` replaces by `And` and `Not` (complement among all texts).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "ANY",
    "ANY_CHAR",
    "DIGIT",
    "EMPTY",
    "EPSILON",
    "NAMED",
    "WORD",
    "Alt",
    "And",
    "Cat",
    "Chars",
    "Edge",
    "Look",
    "Node",
    "Not",
    "Rep",
    "literal",
    "named_category",
    "nullable",
    "size",
]

_AGE = ".".join(unicodedata.unidata_version.split(".")[:2])

# Class items in the engine's syntax, and which characters each holds. They are cut to the version
# of Unicode that Python knows, so that text which matches here matches in Python too.
NAMED: dict[str, Callable[[str], bool]] = {
    rf"[\p{{L}}\p{{N}}_&&\p{{age:{_AGE}}}]": lambda char: char.isalnum() or char == "_",
    rf"[\p{{Nd}}&&\p{{age:{_AGE}}}]": str.isdecimal,
}
WORD, DIGIT = NAMED
"""Word characters and digits."""


def named_category(name: str, negated: bool) -> str | None:
    """The class item for a general category (`L`, `Nd`), entered in `NAMED`; None if unknown."""
    if not any(unicodedata.category(chr(code)).startswith(name) for code in range(0x3000)):
        return None
    item = rf"[\{'P' if negated else 'p'}{{{name}}}&&\p{{age:{_AGE}}}]"
    NAMED.setdefault(item, lambda char: unicodedata.category(char).startswith(name) is not negated)
    return item


@dataclass(frozen=True, slots=True)
class Chars:
    """One character: of the code point `ranges` or the `named` classes, or outside both."""

    ranges: tuple[tuple[int, int], ...] = ()
    named: tuple[str, ...] = ()
    negated: bool = False

    def holds(self, char: str) -> bool:
        """Whether the character is one of these."""
        code = ord(char)
        inside = any(low <= code <= high for low, high in self.ranges) or any(
            NAMED[name](char) for name in self.named
        )
        return inside is not self.negated


@dataclass(frozen=True, slots=True)
class Cat:
    """All `items` in turn; none is the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """Any of the `options`; none is the empty language."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Rep:
    """`item` from `low` to `high` times (None: without end)."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """Lookahead or lookbehind at `position` in the pattern."""

    item: Node
    ahead: bool
    negative: bool
    position: int


@dataclass(frozen=True, slots=True)
class Edge:
    """The start or the end of the text."""

    start: bool
    position: int


@dataclass(frozen=True, slots=True)
class And:
    """Texts that are in every one of the `items`."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Texts that are not in `item`."""

    item: Node


Node = Chars | Cat | Alt | Rep | Look | Edge | And | Not

EPSILON = Cat(())
EMPTY = Alt(())
ANY_CHAR = Chars(negated=True)
ANY = Rep(ANY_CHAR, 0, None)


def literal(text: str) -> Node:
    """The language that holds `text` alone."""
    return Cat(tuple(Chars(((ord(char), ord(char)),)) for char in text))


def nullable(node: Node) -> bool:
    """Whether the empty text is in the language; assertions count as empty texts."""
    match node:
        case Chars():
            return False
        case Cat(items) | And(items):
            return all(map(nullable, items))
        case Alt(options):
            return any(map(nullable, options))
        case Rep(item, low, _):
            return low == 0 or nullable(item)
        case Not(item):
            return not nullable(item)
        case Look() | Edge():
            return True


def size(node: Node) -> int:
    """Characters of the pattern with every counted repetition written out."""
    match node:
        case Chars() | Edge():
            return 1
        case Cat(items) | Alt(items) | And(items):
            return 1 + sum(map(size, items))
        case Rep(item, low, high):
            return 1 + size(item) * max(low, high or 1, 1)
        case Look(item) | Not(item):
            return 1 + size(item)
