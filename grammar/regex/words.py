"""Short texts that a regular expression wants from some point on.

What lives here: `words`. What does not: whether one leads to an end (closing.py tries them).
"""

from __future__ import annotations

from collections.abc import Iterator

from phloem.grammar.regex.nodes import Alt, And, Cat, Chars, Edge, Look, Node, Not, Rep

__all__ = ["words"]

_USUAL = "a0A-_ .@/:b"
_LONGEST = 200


def words(node: Node) -> Iterator[str]:
    """Short texts of the expression's endings, from the whole to the last part, then of its
    parts' endings."""
    match node:
        case Cat(items):
            for start in range(len(items)):
                yield _example(Cat(items[start:]))
            for item in items:
                yield from words(item)
        case Alt(items) | And(items):
            for item in items:
                yield _example(item)
                yield from words(item)
        case Rep(item):
            yield from words(item)
        case Chars():
            yield _example(node)
        case Not() | Look() | Edge():
            return


def _example(node: Node) -> str:
    """A short text of `node`, as far as that is plain to see; else the empty text."""
    match node:
        case Chars(ranges, _, negated):
            usual = (char for char in _USUAL if node.holds(char))
            first = "" if negated or not ranges else chr(ranges[0][0])
            return first if len(ranges) == 1 else next(usual, first)
        case Cat(items):
            return "".join(map(_example, items))
        case Alt(options):
            return _example(options[0]) if options else ""
        case Rep(item, low):
            text = _example(item) if low else ""
            return text * low if len(text) * low <= _LONGEST else ""
        case And(items):
            return max(map(_example, items), key=len)
        case Not() | Look() | Edge():
            return ""
