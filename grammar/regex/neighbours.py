"""Assertions about one character, settled by the character beside them.

What lives here: `settled`, which drops from a row the assertions that its neighbours fulfil and
finds those they contradict (`\\bfoo\\b` leaves two that look away from the word), and `narrowed`,
which takes an assertion into the character it looks at (`(?!")[^\\\\]`). What does not:
assertions about more than one character (resolve.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from phloem.grammar.regex.nodes import (
    DIGIT,
    WORD,
    Alt,
    Cat,
    Chars,
    Edge,
    Look,
    Node,
    Rep,
)

__all__ = ["narrowed", "settled"]

_MAX_CHARS = 4_000
"""A class of more characters is not gone through one by one."""
_IN_WORD = {WORD, DIGIT}
"""Named classes that hold word characters only."""

Row = tuple[Node, ...]


def settled(row: Row) -> Row | None:
    """`row` without the assertions its own characters fulfil; None if they contradict one."""
    kept: list[Node] = []
    for index, part in enumerate(row):
        if isinstance(part, Look) and isinstance(part.item, Chars):
            side = row[index + 1 :] if part.ahead else row[:index][::-1]
            seen = _border(side, first=part.ahead)
            inside = None if seen is None else _all_in(seen, part.item)
            if inside is not None:
                if inside is part.negative:
                    return None
                continue
        kept.append(part)
    return tuple(kept)


def narrowed(node: Node) -> Node:
    """`node` with each lookahead at one character taken into the character behind it."""
    match node:
        case Cat(items):
            made: list[Node] = []
            for item in map(narrowed, items):
                look = made[-1] if made else None
                if isinstance(item, Chars) and isinstance(look, Look):
                    both = _meet(item, look)
                    if both is not None:
                        made[-1] = both
                        continue
                made.append(item)
            return made[0] if len(made) == 1 else Cat(tuple(made))
        case Alt(options):
            return Alt(tuple(map(narrowed, options)))
    return node


def _meet(chars: Chars, look: Look) -> Chars | None:
    """The characters that the lookahead before them allows; None if that can't be written."""
    if not (look.ahead and isinstance(look.item, Chars)):
        return None
    seen = look.item
    every = _listed(chars)
    if every is not None:
        fit = [char for char in every if seen.holds(char) is not look.negative]
        return Chars(tuple((ord(char), ord(char)) for char in fit))
    if chars.negated and look.negative and not seen.negated:
        return Chars(chars.ranges + seen.ranges, chars.named + seen.named, negated=True)
    return None


def _border(parts: Iterable[Node], *, first: bool) -> list[Chars] | None:
    """The classes a text of `parts` may begin (or end) with; None if that is not certain."""
    for part in parts:
        if isinstance(part, Look):
            continue
        return _edge_of(part, first=first)
    return None


def _edge_of(node: Node, *, first: bool) -> list[Chars] | None:
    match node:
        case Chars():
            return [node]
        case Cat(items) if items:
            return _border(items if first else items[::-1], first=first)
        case Rep(item, low) if low > 0:
            return _edge_of(item, first=first)
        case Alt(options) if options:
            found: list[Chars] = []
            for option in options:
                part = _edge_of(option, first=first)
                if part is None:
                    return None
                found += part
            return found
        case Edge():
            return None
    return None


def _all_in(seen: list[Chars], wanted: Chars) -> bool | None:
    """Whether all the classes lie in `wanted`, or all outside; None for neither."""
    verdicts = {_is_in(chars, wanted) for chars in seen}
    return verdicts.pop() if len(verdicts) == 1 else None


def _is_in(chars: Chars, wanted: Chars) -> bool | None:
    if chars == wanted:
        return True
    if (chars.ranges, chars.named) == (wanted.ranges, wanted.named):
        return False  # One is what the other leaves out.
    if chars.named and (
        chars.negated or wanted.negated or WORD not in wanted.named or set(chars.named) - _IN_WORD
    ):
        return None
    every = _listed(Chars(chars.ranges, (), chars.negated))
    if every is None:
        return None
    held = {wanted.holds(char) for char in every} | {True for _ in chars.named}
    return held.pop() if len(held) == 1 else None


def _listed(chars: Chars) -> list[str] | None:
    """The characters of a class that is given by few of them."""
    count = sum(high - low + 1 for low, high in chars.ranges)
    if chars.named or chars.negated or count > _MAX_CHARS:
        return None
    return [chr(code) for low, high in chars.ranges for code in range(low, high + 1)]
