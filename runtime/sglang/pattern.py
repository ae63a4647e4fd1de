"""Regular expressions read as a sequence of parts, so that what follows one can be written alone.

What lives here: the outermost sequence of a pattern, which characters a part may hold, and how many
bytes a text may have. What does not: what follows from it (`course.py`), and a syntax tree of the
whole (`grammar/regex`): the source is cut, since that is what servers are sent.

A pattern is cut between the parts of its outermost sequence only, and nowhere behind what this
module does not read: from there on all is one part.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from phloem.errors import ConstraintError
from phloem.grammar.regex.nodes import Alt, Cat, Chars, Node, Rep
from phloem.grammar.regex.parser import parse_regex

__all__ = ["Part", "may_hold", "most_bytes", "parts_of"]

_SPECIAL = frozenset("[](){}.*+?|^$")
_CLASSES = frozenset("dDwWsS")
_REPEAT = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")
_BEHIND = re.compile(r"\\[AbB]|\(\?<[=!]|(?<![\[\\])\^")
"""What depends on the text before it; taken for that where in doubt."""
_ODD_GROUP = re.compile(r"\(\?(?!:|P<)")
_UTF8_BYTES = 4


@dataclass(frozen=True, slots=True)
class Part:
    """`pattern[start:end]`; `char` if that is no more than a literal character."""

    char: str | None
    start: int
    end: int


@functools.lru_cache(maxsize=256)
def parts_of(pattern: str) -> tuple[Part, ...]:
    """The outermost sequence of a pattern. From what can't be read on, all is one part."""
    if _BEHIND.search(pattern) or _alternates(pattern):
        return ()
    found: list[Part] = []
    at = 0
    while at < len(pattern):
        char, end = _atom(pattern, at)
        repeat = _REPEAT.match(pattern, end)
        if repeat:
            char, end = None, repeat.end()
        found.append(Part(char, at, end))
        at = end
    return tuple(found)


def _atom(pattern: str, at: int) -> tuple[str | None, int]:
    """The literal character at a place, if it is one, and where what stands there ends."""
    char, after = pattern[at], pattern[at + 1 : at + 2]
    if char == "\\" and after in _CLASSES:
        return None, at + 2
    if char == "\\" and after and not (after.isalnum() or after == "_"):
        return after, at + 2
    if char == "[":
        return None, _class_end(pattern, at)
    if char == ".":
        return None, at + 1
    if char == "(":
        end = _group_end(pattern, at)
        return None, len(pattern) if _ODD_GROUP.search(pattern, at, end) else end
    if char in _SPECIAL:
        return None, len(pattern)
    return char, at + 1


def _outside_classes(pattern: str, start: int) -> Iterator[tuple[int, str]]:
    """Each character that is neither escaped nor in a class, with its place."""
    at = start
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
        elif pattern[at] == "[":
            at = _class_end(pattern, at)
        else:
            yield at, pattern[at]
            at += 1


def _class_end(pattern: str, at: int) -> int:
    at += 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"  # A bracket that comes first stands for itself.
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return min(at + 1, len(pattern))


def _group_end(pattern: str, start: int) -> int:
    depth = 0
    for at, char in _outside_classes(pattern, start):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at + 1
    return len(pattern)


def _alternates(pattern: str) -> bool:
    """Whether the whole pattern is a choice, so that its beginning belongs to one branch only."""
    depth = 0
    for _, char in _outside_classes(pattern, 0):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


@functools.lru_cache(maxsize=1024)
def may_hold(pattern: str, char: str) -> bool:
    """Whether a text of the pattern may have this character in it."""

    def holds(node: Node) -> bool:
        match node:
            case Chars():
                return node.holds(char)
            case Cat(nodes) | Alt(nodes):
                return any(map(holds, nodes))
            case Rep(item):
                return holds(item)
        return True

    try:
        return holds(parse_regex(pattern, "python"))
    except ConstraintError:
        return True


@functools.lru_cache(maxsize=1024)
def most_bytes(pattern: str) -> int | None:
    """Bytes of the longest text; None if there is none, or it can't be told."""

    def most(node: Node) -> int | None:
        match node:
            case Chars(ranges, named, negated):
                if named or negated:
                    return _UTF8_BYTES
                return max((len(_utf8(high)) for _, high in ranges), default=0)
            case Cat(items):
                sizes = list(map(most, items))
                return None if None in sizes else sum(size or 0 for size in sizes)
            case Alt(options):
                sizes = list(map(most, options))
                return None if None in sizes else max((size or 0 for size in sizes), default=0)
            case Rep(item, _, high):
                size = most(item)
                return None if size is None or high is None else size * high
        return None

    try:
        return most(parse_regex(pattern, "python"))
    except ConstraintError:
        return None


def _utf8(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass")
