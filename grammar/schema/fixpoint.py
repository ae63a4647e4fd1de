"""Which states have a finite value, and the normal form cut down to those.

What lives here: the least fixed point over the states' kinds and the pruning by it. What does
not: making the kinds (build.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from phloem.grammar.schema.counting import edges
from phloem.grammar.schema.flat import State
from phloem.grammar.schema.model import Arrays, Kind, Objects

__all__ = ["Kinds", "parts", "productive", "pruned", "reachable"]

Kinds = dict[State, tuple[Kind, ...]]


def parts(kind: Kind) -> Iterator[State]:
    """The states a kind's parts are in."""
    if isinstance(kind, Objects):
        yield from (member.state for member in kind.members)
        yield from (other.state for other in kind.others)
        if kind.needed is not None:
            yield kind.needed.state
    elif isinstance(kind, Arrays):
        yield from kind.prefix
        if kind.rest is not None:
            yield kind.rest
        if kind.counted is not None:
            yield from (item.state for items in kind.counted.places for item in items)


def productive(kinds: Kinds) -> set[State]:
    """The states that have a finite value: a least fixed point."""
    live: set[State] = set()
    users: dict[State, set[State]] = {}
    for state, found in kinds.items():
        for kind in found:
            for part in parts(kind):
                users.setdefault(part, set()).add(state)
    todo = list(kinds)
    while todo:
        state = todo.pop()
        if state not in live and any(_is_live(kind, live) for kind in kinds[state]):
            live.add(state)
            todo.extend(users.get(state, ()))
    return live


def _is_live(kind: Kind, live: set[State]) -> bool:
    if isinstance(kind, Objects):
        present = [member for member in kind.members if member.state in live]
        needed = all(m.state in live for m in kind.members if m.required)
        needed = needed and (kind.needed is None or kind.needed.state in live)
        open_ = any(other.state in live for other in kind.others)
        return needed and (open_ or len(present) >= kind.min_members)
    if isinstance(kind, Arrays):
        if kind.counted is not None:
            return bool(edges(kind, live.__contains__))
        items = [*kind.prefix, *[kind.rest] * (kind.rest is not None)]
        full = kind.min_items <= len(kind.prefix) or kind.rest in live
        return full and all(item in live for item in items[: kind.min_items])
    return True


def pruned(kinds: Kinds, live: set[State]) -> Kinds:
    """`kinds` without the states and parts that have no value."""
    result: Kinds = {}
    for state in live:
        kept = [kind for kind in kinds[state] if _is_live(kind, live)]
        result[state] = tuple(dict.fromkeys(_prune(kind, live) for kind in kept))
    return result


def _prune(kind: Kind, live: set[State]) -> Kind:
    if isinstance(kind, Objects):
        members = tuple(member for member in kind.members if member.state in live)
        others = tuple(other for other in kind.others if other.state in live)
        return dataclasses.replace(kind, members=members, others=others)
    if isinstance(kind, Arrays):
        if kind.counted is not None:
            places = tuple(
                tuple(item for item in items if item.state in live) for items in kind.counted.places
            )
            return dataclasses.replace(
                kind, counted=dataclasses.replace(kind.counted, places=places)
            )
        prefix = kind.prefix
        dead = next((i for i, state in enumerate(prefix) if state not in live), None)
        if dead is not None:
            return dataclasses.replace(kind, prefix=prefix[:dead], rest=None)
        if kind.rest is not None and kind.rest not in live:
            return dataclasses.replace(kind, rest=None)
    return kind


def reachable(start: State, kinds: Kinds) -> Kinds:
    """The part of `kinds` that `start` leads to."""
    found: Kinds = {start: kinds[start]}
    todo = [start]
    while todo:
        for kind in kinds[todo.pop()]:
            for part in parts(kind):
                if part not in found:
                    found[part] = kinds[part]
                    todo.append(part)
    return found
