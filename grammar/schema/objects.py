"""Flats -> kinds of objects: members by name, others by class of name.

What lives here: which state each member must be in, which classes of other names there are, and
the spreading of "some member must ..." over the members and classes that can meet it. What does
not: the rules that write an object (emit.py).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Protocol

from phloem.errors import ConstraintError
from phloem.grammar.regex.nodes import ANY_CHAR, Alt, And, Node, Not, Rep, literal
from phloem.grammar.schema.flat import Flat, ObjectGroup, Op, Some, State, joined
from phloem.grammar.schema.model import KeyClass, Kind, Literals, Member, Objects, Strings
from phloem.grammar.schema.strings import is_empty, matches_pattern, pattern_language

__all__ = ["States", "object_kinds", "without_subsumed"]

_MAX_CLASSES = 64


class States(Protocol):
    """What is asked about states (the builder answers)."""

    def kinds(self, state: State) -> tuple[Kind, ...]:
        """The kinds of values of a state."""
        ...

    def void(self, state: State) -> bool:
        """Whether a state surely has no value."""
        ...

    def satisfies(self, state: State, value: Any) -> bool:
        """Whether a known value is in the state."""
        ...

    def check_time(self) -> None:
        """Raise `ConstraintError` once the compile has taken too long."""
        ...


def object_kinds(states: States, flat: Flat) -> list[Objects]:
    """The objects of one flat; none if a required member can have no value."""
    groups = sorted(flat.objects, key=lambda group: group.order)
    names = dict.fromkeys(name for group in groups for name in group.named)
    names.update(dict.fromkeys(sorted(flat.required, key=lambda name: flat.required[name])))
    names.update(dict.fromkeys(sorted(flat.absent)))
    allowed = _finite_names(states, flat.names)
    names.update(dict.fromkeys(allowed or ()))
    members = []
    for name in names:
        state = _member_state(groups, name)
        needed = name in flat.required
        fits = name not in flat.absent and states.satisfies(flat.names, name)
        if fits and not states.void(state):
            members.append(Member(name, state, needed))
        elif needed:
            return []
    taken = tuple(names)
    others = () if allowed is not None else _classes(states, groups, flat.names, taken)
    made = [
        _bounded(flat, tuple(chosen), others, needed_class)
        for chosen, needed_class in _with_some(states, flat.some, members, others)
    ]
    return [kind for kind in made if kind is not None]


def _bounded(
    flat: Flat, members: tuple[Member, ...], others: tuple[KeyClass, ...], needed: KeyClass | None
) -> Objects | None:
    least, most = flat.min_members, flat.max_members
    if most is not None and most >= len(members) and not others:
        most = None
    if least <= sum(member.required for member in members):
        least = 0
    if least > len(members) and not others:
        return None
    if needed is not None and (least > 1 or most is not None):
        raise ConstraintError("bounds on the number of members next to a negated schema")
    return Objects(members, others, 0 if needed is not None else least, most, needed)


def _member_state(groups: Sequence[ObjectGroup], name: str) -> State:
    ops: list[Op | None] = []
    for group in groups:
        found = [group.named[name]] if name in group.named else []
        found += [op for pattern, op in group.patterns if matches_pattern(pattern, name)]
        ops.extend(found or [group.others])
    return joined(ops)


def _classes(
    states: States, groups: Sequence[ObjectGroup], names: State, taken: tuple[str, ...]
) -> tuple[KeyClass, ...]:
    """Classes of the names that no member has, by which patterns match them."""
    classes: list[tuple[tuple[Node, ...], frozenset[str]]] = [
        (shape, frozenset()) for shape in _name_shapes(states, names)
    ]
    for pattern in dict.fromkeys(p for group in groups for p, _ in group.patterns):
        states.check_time()
        language = pattern_language(pattern)
        classes = [
            part
            for shape, matched in classes
            for part in (
                ((*shape, language), matched | {pattern}),
                ((*shape, Not(language)), matched),
            )
            if not is_empty(And(part[0]))
        ]
        if len(classes) > _MAX_CLASSES:
            raise ConstraintError(
                "'patternProperties' with so many overlapping patterns can't be enforced",
                keyword="patternProperties",
            )
    made = []
    for shape, matched in classes:
        ops: list[Op | None] = []
        for group in groups:
            found: list[Op | None] = [op for p, op in group.patterns if p in matched]
            ops.extend(found or [group.others])
        state = joined(ops)
        if not states.void(state) and not _all_taken(shape, taken):
            made.append(KeyClass(And(shape) if shape else None, taken, state))
    return tuple(made)


def _all_taken(shape: tuple[Node, ...], taken: tuple[str, ...]) -> bool:
    """Whether no name is left in the class once the known ones are out."""
    return bool(shape) and is_empty(And((*shape, Not(Alt(tuple(map(literal, taken)))))))


def _name_shapes(states: States, names: State) -> list[tuple[Node, ...]]:
    """The alternatives for a name that `propertyNames` allows, as languages."""
    if not names:
        return [()]
    shapes = []
    for kind in states.kinds(names):
        if isinstance(kind, Strings):
            lengths = Rep(ANY_CHAR, kind.min_length, kind.max_length)
            bounded = kind.min_length or kind.max_length is not None
            shapes.append((*kind.languages, lengths) if bounded else kind.languages)
    return shapes


def _finite_names(states: States, names: State) -> list[str] | None:
    """All names that `propertyNames` allows, if it lists them."""
    if not names:
        return None
    kinds = states.kinds(names)
    if any(isinstance(kind, Strings) for kind in kinds):
        return None
    values = [json.loads(t) for kind in kinds if isinstance(kind, Literals) for t in kind.texts]
    return [value for value in values if isinstance(value, str)]


_Choice = tuple[list[Member], KeyClass | None]


def _with_some(
    states: States, somes: tuple[Some, ...], members: list[Member], others: tuple[KeyClass, ...]
) -> list[_Choice]:
    """The members and needed class for every way to meet each of `somes`."""
    ways: list[list[Member | KeyClass]] = []
    for some in somes:
        met: list[Member | KeyClass] = []
        for member in members:
            state = joined((*member.state, some.op))
            if _covers(some, member.name) and not states.void(state):
                met.append(Member(member.name, state, True))
        for other in others:
            found = _narrowed(states, some, other)
            if found is not None:
                met.append(found)
        ways.append(met)
    result: list[_Choice] = []
    for way in itertools.product(*ways):
        wanted = [part for part in way if isinstance(part, KeyClass)]
        if len(wanted) > 1:
            raise ConstraintError(
                "negated additionalProperties or patternProperties can't be enforced together",
                hint="give the branches of oneOf a property with distinct const values",
            )
        chosen = {member.name: member for member in members}
        for part in way:
            if isinstance(part, Member):
                state = joined((*chosen[part.name].state, *part.state))
                chosen[part.name] = Member(part.name, state, True)
        result.append((list(chosen.values()), wanted[0] if wanted else None))
    return result


def _covers(some: Some, name: str) -> bool:
    if some.within is not None:
        return matches_pattern(some.within, name)
    return name not in some.named and not any(matches_pattern(p, name) for p in some.patterns)


def _narrowed(states: States, some: Some, other: KeyClass) -> KeyClass | None:
    """The part of a class that meets `some`; None if it is empty."""
    languages = [] if other.language is None else [other.language]
    if some.within is not None:
        languages.append(pattern_language(some.within))
    languages += [Not(pattern_language(pattern)) for pattern in some.patterns]
    state = joined((*other.state, some.op))
    taken = tuple(dict.fromkeys((*other.taken, *sorted(some.named))))
    if states.void(state) or _all_taken(tuple(languages), taken):
        return None
    return KeyClass(And(tuple(languages)) if languages else None, taken, state)


def without_subsumed(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """`kinds` less the objects that another kind of object holds as well.

    Choices that overlap make many of those; each would cost the parser its own rules.
    """
    objects = [kind for kind in kinds if isinstance(kind, Objects)]
    if len(objects) < 2:
        return kinds
    views = {id(kind): {m.name: m for m in kind.members} for kind in objects}
    kept: list[Objects] = []
    # Those with more members and fewer required ones first: they hold the others.
    for kind in sorted(
        objects, key=lambda k: (-len(k.members), sum(m.required for m in k.members))
    ):
        if not any(_holds(big, kind, views) for big in kept):
            kept.append(kind)
    dropped = {id(kind) for kind in objects} - {id(kind) for kind in kept}
    return tuple(kind for kind in kinds if id(kind) not in dropped)


def _holds(big: Objects, small: Objects, views: dict[int, dict[str, Member]]) -> bool:
    """Whether every object of `small` is one of `big`, member by member in the same order."""
    same = (big.others, big.min_members, big.max_members, big.needed) == (
        small.others, small.min_members, small.max_members, small.needed,
    )  # fmt: skip
    if not same:
        return False
    wide, narrow = views[id(big)], views[id(small)]
    shared = [name for name in wide if name in narrow]
    return (
        shared == list(narrow)
        and all(wide[name].state == narrow[name].state for name in narrow)
        and all(narrow[m.name].required for m in big.members if m.required and m.name in narrow)
        and all(m.name in narrow for m in big.members if m.required)
    )
