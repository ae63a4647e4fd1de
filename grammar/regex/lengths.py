"""How long the texts of a regular expression are.

What lives here: bounds by the syntax tree. What does not: emptiness (schema/strings.py asks the
engine) and exact answers about intersections (analysis.py).
"""

from __future__ import annotations

from phloem.grammar.regex.nodes import Alt, And, Cat, Chars, Edge, Look, Node, Not, Rep

__all__ = ["Lengths", "has_boolean", "lengths"]

Lengths = tuple[int, int | None]
"""Fewest and most characters; None is "no bound known"."""


def lengths(node: Node) -> Lengths:
    """Bounds on the length of the texts of `node`: none is shorter or longer.

    They are met where the tree has no intersection and no complement.
    """
    match node:
        case Chars():
            return 1, 1
        case Edge() | Look():
            return 0, 0
        case Not():
            return 0, None
        case Cat(items):
            return _sum([lengths(item) for item in items])
        case Alt(options):
            found = [lengths(option) for option in options] or [(0, 0)]
            highs = [high for _, high in found]
            return min(low for low, _ in found), _most(highs)
        case And(items):
            found = [lengths(item) for item in items]
            bounded = [high for _, high in found if high is not None]
            return max(low for low, _ in found), min(bounded, default=None)
        case Rep(item, least, most):
            low, high = lengths(item)
            if high == 0:
                return 0, 0
            return low * least, None if most is None or high is None else high * most


def _sum(parts: list[Lengths]) -> Lengths:
    highs = [high for _, high in parts]
    total = None if None in highs else sum(high for high in highs if high is not None)
    return sum(low for low, _ in parts), total


def _most(highs: list[int | None]) -> int | None:
    return None if None in highs else max(high for high in highs if high is not None)


def has_boolean(node: Node) -> bool:
    """Whether the tree has an intersection or a complement."""
    match node:
        case And() | Not():
            return True
        case Cat(items) | Alt(items):
            return any(map(has_boolean, items))
        case Rep(item):
            return has_boolean(item)
        case Chars() | Edge() | Look():
            return False
