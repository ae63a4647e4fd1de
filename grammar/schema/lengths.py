"""How long the JSON texts of a schema are, compact.

What lives here: the fewest characters, by a least fixed point over the states, and the most,
where nothing in the schema is unbounded. What does not: tokens.
"""

from __future__ import annotations

from phloem.grammar.regex.lengths import Lengths, lengths
from phloem.grammar.regex.nodes import And
from phloem.grammar.schema.counting import fewest
from phloem.grammar.schema.flat import State
from phloem.grammar.schema.model import Arrays, Counted, Kind, Literals, Model, Objects, Strings
from phloem.grammar.schema.values import json_text

__all__ = ["schema_lengths"]

_DEEP = 10**9


def schema_lengths(model: Model) -> Lengths:
    """Fewest and most characters of a compact JSON text of the model (None: no bound)."""
    least = dict.fromkeys(model.kinds, _DEEP)
    changed = True
    while changed:
        changed = False
        for state, kinds in model.kinds.items():
            found = min((_fewest(kind, least) for kind in kinds), default=_DEEP)
            if found < least[state]:
                least[state], changed = found, True
    return least[model.start], _most(model, model.start, {})


def _fewest(kind: Kind, least: dict[State, int]) -> int:
    match kind:
        case Literals(texts):
            return min(map(len, texts))
        case Strings():
            return 2 + _string(kind)[0]
        case Arrays(counted=Counted()):
            inner = fewest(kind, least.__getitem__)
            return _DEEP if inner is None else min(2 + inner, _DEEP)
        case Arrays(prefix, rest, min_items):
            items = [least[state] for state in prefix[:min_items]]
            if rest is not None:
                items += [least[rest]] * (min_items - len(items))
            return min(2 + sum(items) + max(min_items - 1, 0), _DEEP)
        case Objects():
            return _fewest_members(kind, least)
    return 1


def _fewest_members(kind: Objects, least: dict[State, int]) -> int:
    sizes = {m.name: len(json_text(m.name)) + 1 + least[m.state] for m in kind.members}
    needed = [sizes[m.name] for m in kind.members if m.required]
    optional = sorted(sizes[m.name] for m in kind.members if not m.required)
    while len(needed) < kind.min_members:
        # A member with a free name has at least two quotes, a colon and a value.
        needed.append(min(optional.pop(0) if optional else _DEEP, 4 if kind.others else _DEEP))
    return min(2 + sum(needed) + max(len(needed) - 1, 0), _DEEP)


def _string(kind: Strings) -> Lengths:
    low, high = kind.min_length, kind.max_length
    if kind.languages:
        inner_low, inner_high = lengths(And(kind.languages))
        low = max(low, inner_low)
        high = inner_high if high is None else min(high, inner_high or high)
    return low, high


def _most(model: Model, state: State, open_: dict[State, int | None]) -> int | None:
    """The most characters of a state; recursion has no bound."""
    if state not in open_:
        open_[state] = None
        sizes = [_most_of(model, kind, open_) for kind in model.kinds[state]]
        open_[state] = None if None in sizes else max(size for size in sizes if size is not None)
    return open_[state]


def _most_of(model: Model, kind: Kind, open_: dict[State, int | None]) -> int | None:
    match kind:
        case Literals(texts):
            return max(map(len, texts))
        case Strings():
            high = _string(kind)[1]
            # One character may take two \\u escapes.
            return None if high is None else 2 + 12 * high
        case Arrays(max_items=most, counted=Counted() as counted):
            if most is None:
                return None
            found = [
                [_most(model, item.state, open_) for item in counted.at(index)]
                for index in range(most)
            ]
            if any(None in items for items in found):
                return None
            return 2 + sum(max((s for s in items if s), default=0) + 1 for items in found)
        case Arrays(prefix, rest, _, max_items):
            if rest is not None and max_items is None:
                return None
            count = len(prefix) if rest is None else max_items or 0
            states = [*prefix, *[rest] * (count - len(prefix) if rest is not None else 0)][:count]
            sizes = [_most(model, state, open_) for state in states if state is not None]
            return None if None in sizes else 2 + sum(s + 1 for s in sizes if s is not None)
        case Objects() if not kind.others:
            sizes = [_most(model, member.state, open_) for member in kind.members]
            names = sum(12 * len(member.name) + 4 for member in kind.members)
            return None if None in sizes else 2 + names + sum(s for s in sizes if s is not None)
    return None
