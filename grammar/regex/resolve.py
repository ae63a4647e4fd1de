"""Assertions -> intersections and complements: the tree without `Look` and `Edge`.

What lives here: the exact removal of anchors, lookaround and word borders. What does not:
approximations: what can't be removed exactly is refused with its position.

A pattern is first spread over its alternatives until each is a row of plain parts and
assertions. In a row the text is `u v` at every assertion, `u` read so far and `v` to come, up to
the very end of the text (when searching, the rest of the text is a part of the row). Hence

    A (?=X) B   is   A (B and X.*)          A (?!X) B   is   A (B and not X.*)
    A (?<=X) B  is   (A and .*X) B          A (?<!X) B  is   (A and not .*X) B

The right column holds because the rest of the row describes all of `v` (all of `u`), so no
choice made left of the assertion is lost. A lookahead that reaches over a later lookbehind
would tie both sides together; it is resolved only where one of them sees the whole text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from phloem.errors import ConstraintError
from phloem.grammar.regex.neighbours import narrowed, settled
from phloem.grammar.regex.nodes import (
    ANY,
    ANY_CHAR,
    EMPTY,
    EPSILON,
    Alt,
    And,
    Cat,
    Chars,
    Edge,
    Look,
    Node,
    Not,
    Rep,
    nullable,
)

__all__ = ["full_match", "search"]

_MAX_ROWS = 256
_MAX_UNROLL = 8
_SOME = Rep(ANY_CHAR, 1, None)

Row = tuple[Node, ...]


def full_match(node: Node) -> Node:
    """The language of texts that `node` matches from end to end."""
    return _union(_resolve(row) for row in _rows(node))


def search(node: Node) -> Node:
    """The language of texts in which `node` matches somewhere."""
    return _union(_resolve((ANY, *row, ANY)) for row in _rows(node))


def _has_assertion(node: Node) -> bool:
    match node:
        case Look() | Edge():
            return True
        case Chars():
            return False
        case Cat(items) | Alt(items) | And(items):
            return any(map(_has_assertion, items))
        case Rep(item) | Not(item):
            return _has_assertion(item)


def _rows(node: Node) -> list[Row]:
    if not _has_assertion(node):
        return [(node,)]
    match node:
        case Cat(items):
            rows: list[Row] = [()]
            for item in items:
                rows = [left + right for left in rows for right in _rows(item)]
                _limit(rows, item)
            return rows
        case Alt(options):
            rows = [row for option in options for row in _rows(option)]
            _limit(rows, node)
            return rows
        case Rep(item, low, high) if not _has_assertion(narrowed(item)):
            return [(Rep(narrowed(item), low, high),)]
        case Rep(Cat((Look(_, True, True), Chars()))):
            return [(node,)]  # Resolved where nothing follows, see `_without_inside`.
        case Rep(item, low, high) if high is not None and high <= _MAX_UNROLL:
            rows = [row for count in range(low, high + 1) for row in _rows(Cat((item,) * count))]
            _limit(rows, node)
            return rows
        case Rep():
            _refuse("an assertion inside a repetition", _position(node))
    return [(node,)]


def _limit(rows: list[Row], node: Node) -> None:
    if len(rows) > _MAX_ROWS:
        _refuse("too many alternatives around assertions", _position(node))


def _resolve(row: Row) -> Node:
    """One row, whose parts describe the whole text, without its assertions."""
    whole: list[Node] = []
    row = _edges(row)
    known = settled(row)
    if row == (EMPTY,) or known is None:
        return EMPTY
    row = _from_the_start(known, whole)
    row = _without_inside(_to_the_end(row, whole))
    if EMPTY in whole:
        return EMPTY
    ahead = [i for i, part in enumerate(row) if isinstance(part, Look) and part.ahead]
    behind = [i for i, part in enumerate(row) if isinstance(part, Look) and not part.ahead]
    if ahead and behind and ahead[0] < behind[-1]:
        _refuse("a lookbehind or word border after a lookahead", _position(row[behind[-1]]))
    split = ahead[0] if ahead else len(row)
    head: Node = EPSILON
    for part in row[:split]:
        head = And((head, _view(part))) if isinstance(part, Look) else _joined(head, part)
    tail: Node = EPSILON
    for part in reversed(row[split:]):
        tail = And((tail, _view(part))) if isinstance(part, Look) else _joined(part, tail)
    text = _joined(head, tail)
    return And((text, *whole)) if whole else text


def _without_inside(row: Row) -> Row:
    """`row` with `((?!X)c)*` at its end as the texts of c that hold no X.

    Further on in a row the lookaheads would reach over what follows the repetition.
    """
    parts = list(row)
    for index, part in enumerate(parts):
        match part:
            case Rep(Cat((Look() as look, chars)), low, high):
                if index + 1 < len(parts):
                    _refuse("an assertion inside a repetition", look.position)
                # It looks from before each character, so at the end of the text no more.
                seen = And((_view(dataclasses.replace(look, negative=False)), _SOME))
                parts[index] = And((Rep(chars, low, high), Not(Cat((ANY, seen)))))
    return tuple(parts)


def _edges(row: Row) -> Row:
    """`row` cut at its anchors, or the empty language if an anchor can't hold.

    Before a start anchor (after an end anchor) only the empty text may stand: parts there that
    may be empty are dropped, lookarounds there see the empty text.
    """
    starts = [i for i, part in enumerate(row) if isinstance(part, Edge) and part.start]
    ends = [i for i, part in enumerate(row) if isinstance(part, Edge) and not part.start]
    first = starts[-1] + 1 if starts else 0
    last = ends[0] if ends else len(row)
    if last < first:
        empty = all(nullable(_view(part) if isinstance(part, Look) else part) for part in row)
        return (EPSILON,) if empty else (EMPTY,)
    for part in (*row[:first], *row[last:]):
        if isinstance(part, Look):
            continue
        if not nullable(part):
            return (EMPTY,)
    before = tuple(part for part in row[:first] if isinstance(part, Look))
    after = tuple(part for part in row[last:] if isinstance(part, Look))
    return (*before, *row[first:last], *after)


def _from_the_start(row: Row, whole: list[Node]) -> Row:
    """Move the assertions at the very start of the text to conditions on the whole text."""
    while row and isinstance(row[0], Look):
        look, row = row[0], row[1:]
        if look.ahead:
            whole.append(_view(look))
        elif nullable(_view(look)) is False:
            whole.append(EMPTY)
    return row


def _to_the_end(row: Row, whole: list[Node]) -> Row:
    """The same at the very end of the text."""
    while row and isinstance(row[-1], Look):
        look, row = row[-1], row[:-1]
        if not look.ahead:
            whole.append(_view(look))
        elif nullable(_view(look)) is False:
            whole.append(EMPTY)
    return row


def _view(look: Look) -> Node:
    """The texts that may stand on the side `look` looks at."""
    rows = []
    for row in _rows(look.item):
        inner = _edges((*row, ANY) if look.ahead else (ANY, *row))
        if any(isinstance(part, Look) and part.ahead is not look.ahead for part in inner):
            _refuse("a lookbehind inside a lookahead, or the reverse", look.position)
        wrong = [p for p in row if isinstance(p, Edge) and p.start is look.ahead]
        if wrong:
            _refuse("an anchor that looks the other way", _position(wrong[0]))
        rows.append(_resolve(inner))
    seen = _union(rows)
    return Not(seen) if look.negative else seen


def _joined(left: Node, right: Node) -> Node:
    items = [*(left.items if isinstance(left, Cat) else (left,))]
    items += right.items if isinstance(right, Cat) else (right,)
    return items[0] if len(items) == 1 else Cat(tuple(items))


def _union(options: Iterable[Node]) -> Node:
    kept = [option for option in options if option != EMPTY]
    return kept[0] if len(kept) == 1 else Alt(tuple(kept))


def _position(node: Node) -> int:
    match node:
        case Look(position=position) | Edge(position=position):
            return position
        case Cat(items) | Alt(items) | And(items):
            return max((_position(item) for item in items), default=0)
        case Rep(item) | Not(item):
            return _position(item)
    return 0


def _refuse(what: str, position: int) -> None:
    raise ConstraintError(
        f"unsupported regex: {what} at position {position} can't be enforced exactly",
        hint="move lookaround out of repetitions, to the start or the end of the pattern",
        position=position,
    )
