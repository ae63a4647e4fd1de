"""Flats -> the normal form, closed over all reachable states and free of empty parts.

What lives here: `build_model`. Flats become kinds of values whose parts are new states; states
are followed until no new one appears (there are finitely many: sets of subschemas). Then the
states that have any finite value are found by a least fixed point, and all else is cut away: an
optional member that can have no value may not appear, a required one empties its object. So
recursion that never ends is found here, before anything is generated.

What does not live here: the meaning of keywords (flatten.py), the writing (emit.py).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.regex.nodes import ANY_CHAR, And, Node, Not, Rep, literal
from phloem.grammar.schema.document import Document
from phloem.grammar.schema.evaluate import Evaluator
from phloem.grammar.schema.flat import Flat, ObjectGroup, Op, Range, State, has_integer
from phloem.grammar.schema.flatten import Flattener
from phloem.grammar.schema.model import (
    Arrays,
    KeyClass,
    Kind,
    Literals,
    Member,
    Model,
    Numbers,
    Objects,
    Strings,
)
from phloem.grammar.schema.strings import is_empty, matches_pattern, pattern_language
from phloem.grammar.schema.values import (
    common_multiple,
    exact,
    is_number,
    json_text,
    key_of,
    type_of,
)

__all__ = ["build_model"]

_MAX_STATES = 30_000
_MAX_CLASSES = 64
_EMPTY_DEPTH = 5


def build_model(schema: Any, deadline: float) -> Model:
    """The normal form of `schema`. Raises `ConstraintError` if it can't be enforced exactly."""
    document = Document(schema)
    builder = _Builder(document, deadline)
    start: State = ((True, document.root),)
    kinds = builder.close(start)
    live = _productive(kinds)
    if start not in live:
        raise ConstraintError(
            "no finite JSON value satisfies the schema",
            hint="a required member may contradict itself or contain itself without end",
            path="$",
        )
    return Model(start, _reachable(start, _pruned(kinds, live)))


class _Builder:
    def __init__(self, document: Document, deadline: float) -> None:
        self.document = document
        self.flattener = Flattener(document, deadline)
        self.flattener.disjoint = self._disjoint
        self.evaluator = Evaluator(document)
        self._void: dict[State, bool] = {}
        self._kinds: dict[State, tuple[Kind, ...]] = {}

    def close(self, start: State) -> dict[State, tuple[Kind, ...]]:
        """The kinds of all states that `start` reaches."""
        todo, found = [start], {start: ()}
        kinds: dict[State, tuple[Kind, ...]] = {}
        while todo:
            state = todo.pop()
            kinds[state] = self.kinds(state)
            for kind in kinds[state]:
                for part in _parts(kind):
                    if part not in found:
                        found[part] = ()
                        todo.append(part)
            if len(found) > _MAX_STATES:
                raise ConstraintError(f"the schema needs more than {_MAX_STATES:,} states")
        return kinds

    def kinds(self, state: State) -> tuple[Kind, ...]:
        """The kinds of values of one state."""
        if state not in self._kinds:
            found: dict[Kind, None] = {}
            values: list[Any] = []
            for flat in self.flattener.expand(state):
                if flat.literals is not None:
                    values.extend(flat.literals.values())
                else:
                    found.update(dict.fromkeys(self._of_flat(flat)))
            # One branch names the values, but all of the state must agree with them.
            texts = {json_text(v): None for v in values if self._satisfies(state, v)}
            if texts:
                found[Literals(tuple(texts))] = None
            self._kinds[state] = tuple(found)
        return self._kinds[state]

    def _satisfies(self, state: State, value: Any) -> bool:
        return all(self.evaluator.valid(number, value) is holds for holds, number in state)

    def _of_flat(self, flat: Flat) -> list[Kind]:
        texts = tuple(
            json_text(value)
            for value in (None, True, False)
            if type_of(value) in flat.types and key_of(value) not in flat.excluded
        )
        kinds: list[Kind] = [Literals(texts)] if texts else []
        kinds.extend(_numbers(flat))
        for made in (self._strings(flat), self._arrays(flat), self._objects(flat)):
            if made is not None:
                kinds.append(made)
        return kinds

    def _strings(self, flat: Flat) -> Kind | None:
        if "string" not in flat.types:
            return None
        texts = [value for value in flat.excluded.values() if isinstance(value, str)]
        languages = flat.languages + tuple(Not(literal(text)) for text in texts)
        lengths = Rep(ANY_CHAR, flat.min_length, flat.max_length)
        if languages and is_empty(And((*languages, lengths))):
            return None
        return Strings(flat.min_length, flat.max_length, languages)

    def _arrays(self, flat: Flat) -> Kind | None:
        if "array" not in flat.types:
            return None
        self._check_excluded(flat, list, "array")
        length = max((len(group.prefix) for group in flat.arrays), default=0)
        prefix = tuple(
            _state(
                group.prefix[index] if index < len(group.prefix) else group.rest
                for group in flat.arrays
            )
            for index in range(length)
        )
        rest = _state(group.rest for group in flat.arrays)
        contains: State | None = None
        if flat.contains:
            if len(flat.contains) > 1 or prefix:
                self._refuse("contains", "next to other items keywords")
            contains = _state((*rest, *flat.contains))
        self._check_blockers(flat, "array")
        return Arrays(prefix, rest, flat.min_items, flat.max_items, flat.unique, contains)

    def _objects(self, flat: Flat) -> Kind | None:
        if "object" not in flat.types:
            return None
        self._check_excluded(flat, dict, "object")
        groups = sorted(flat.objects, key=lambda group: group.order)
        ordered = [(group.order, name) for group in groups for name in group.named]
        names = dict.fromkeys(name for _, name in ordered)
        names.update(dict.fromkeys(sorted(flat.required, key=lambda name: flat.required[name])))
        allowed = self._finite_names(flat.names)
        if allowed is not None:
            names.update(dict.fromkeys(allowed))
        members, taken = [], list(names)
        for name in names:
            state = self._member_state(groups, name)
            bad_name = not self._satisfies(flat.names, name)
            if bad_name or self.void(state):
                if name in flat.required:
                    return None
                continue
            members.append(Member(name, state, name in flat.required))
        others = () if allowed is not None else self._classes(groups, flat.names, taken)
        self._check_blockers(flat, "object")
        most = flat.max_members
        if most is not None and most >= len(members) and not others:
            most = None
        least = max(flat.min_members, 0)
        if least <= len(flat.required):
            least = 0
        if least > len(members) and not others:
            return None
        return Objects(tuple(members), others, least, most)

    def _member_state(self, groups: list[ObjectGroup], name: str) -> State:
        ops: list[Op | None] = []
        for group in groups:
            found = [group.named[name]] if name in group.named else []
            found += [op for pattern, op in group.patterns if matches_pattern(pattern, name)]
            ops.extend(found or [group.others])
        return _state(ops)

    def _classes(
        self, groups: list[ObjectGroup], names: tuple[Op, ...], taken: list[str]
    ) -> tuple[KeyClass, ...]:
        """Classes of names that no member has, by which patterns match them."""
        shapes = self._name_shapes(names)
        classes: list[tuple[tuple[Node, ...], frozenset[str]]] = [
            (shape, frozenset()) for shape in shapes
        ]
        for pattern in dict.fromkeys(p for group in groups for p, _ in group.patterns):
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
                self._refuse("patternProperties", "with so many overlapping patterns")
        made = []
        for shape, matched in classes:
            ops: list[Op | None] = []
            for group in groups:
                found: list[Op | None] = [op for p, op in group.patterns if p in matched]
                ops.extend(found or [group.others])
            state = _state(ops)
            if not self.void(state):
                language_ = And(shape) if shape else None
                made.append(KeyClass(language_, tuple(taken), state))
        return tuple(made)

    def _name_shapes(self, names: tuple[Op, ...]) -> list[tuple[Node, ...]]:
        """The alternatives for a name that `propertyNames` allows, as languages."""
        if not names:
            return [()]
        shapes = []
        for kind in self.kinds(names):
            if isinstance(kind, Strings):
                lengths = Rep(ANY_CHAR, kind.min_length, kind.max_length)
                bounded = kind.min_length or kind.max_length is not None
                shapes.append((*kind.languages, lengths) if bounded else kind.languages)
        return shapes

    def _finite_names(self, names: tuple[Op, ...]) -> list[str] | None:
        """All names that `propertyNames` allows, if it lists them."""
        if not names:
            return None
        kinds = self.kinds(names)
        if any(isinstance(kind, Strings) for kind in kinds):
            return None
        values = [json.loads(t) for k in kinds if isinstance(k, Literals) for t in k.texts]
        return [value for value in values if isinstance(value, str)]

    def void(self, state: State, depth: int = _EMPTY_DEPTH) -> bool:
        """Whether `state` surely has no value; may say no where a deep look would say yes."""
        if depth == 0:
            return False
        if state not in self._void:
            self._void[state] = False  # A cycle says nothing against a value.
            self._void[state] = not self.kinds(state) or all(
                self._hollow(kind, depth - 1) for kind in self.kinds(state)
            )
        return self._void[state]

    def _hollow(self, kind: Kind, depth: int) -> bool:
        match kind:
            case Objects(members):
                return any(m.required and self.void(m.state, depth) for m in members)
            case Arrays(prefix, rest, min_items):
                needed = [*prefix[:min_items]]
                if min_items > len(prefix) and rest is not None:
                    needed.append(rest)
                return any(self.void(state, depth) for state in needed)
        return False

    def _disjoint(self, left: int, right: int) -> bool:
        state = tuple(sorted({(True, left), (True, right)}))
        try:
            return self.void(state)
        except ConstraintError:
            return False  # Whatever is wrong will be found where the branch itself is used.

    def _check_excluded(self, flat: Flat, kind: type, name: str) -> None:
        if any(isinstance(value, kind) for value in flat.excluded.values()):
            self._refuse("not", f"with a constant {name}")

    def _check_blockers(self, flat: Flat, kind: str) -> None:
        for keyword, path, blocked in flat.blockers:
            if blocked == kind:
                raise ConstraintError(
                    f"{keyword!r} at {path} can't be enforced where it is negated "
                    "(by not, else, or a oneOf whose branches overlap)",
                    hint="give the branches of oneOf a property with distinct const values",
                    keyword=keyword,
                    path=path,
                )

    def _refuse(self, keyword: str, why: str) -> None:
        raise ConstraintError(f"{keyword!r} {why} can't be enforced exactly", keyword=keyword)


def _state(ops: Iterable[Op | None]) -> State:
    return tuple(dict.fromkeys(op for op in ops if op is not None))


def _numbers(flat: Flat) -> list[Kind]:
    whole, fractional = "integer" in flat.types, "fraction" in flat.types
    if not whole and not fractional:
        return []
    multiples = (common_multiple(flat.multiples),) if flat.multiples else ()
    spans = [flat.range]
    for value in flat.excluded.values():
        if is_number(value):
            number = exact(value)
            below = Range(high=number, high_open=True)
            above = Range(low=number, low_open=True)
            spans = [span.meet(side) for span in spans for side in (below, above)]
    return [
        Numbers(not fractional, not whole, span, multiples)
        for span in spans
        if not span.is_empty() and (fractional or has_integer(span, multiples))
    ]


def _parts(kind: Kind) -> Iterator[State]:
    """The states a kind's parts are in."""
    if isinstance(kind, Objects):
        yield from (member.state for member in kind.members)
        yield from (other.state for other in kind.others)
    elif isinstance(kind, Arrays):
        yield from kind.prefix
        yield from (state for state in (kind.rest, kind.contains) if state is not None)


_Kinds = dict[State, tuple[Kind, ...]]


def _productive(kinds: _Kinds) -> set[State]:
    """The states that have a finite value: a least fixed point."""
    live: set[State] = set()
    users: dict[State, set[State]] = {}
    for state, found in kinds.items():
        for kind in found:
            for part in _parts(kind):
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
        open_ = any(other.state in live for other in kind.others)
        return needed and (open_ or len(present) >= kind.min_members)
    if isinstance(kind, Arrays):
        if kind.contains is not None and kind.contains not in live:
            return False
        items = [*kind.prefix, *[kind.rest] * (kind.rest is not None)]
        full = kind.min_items <= len(kind.prefix) or kind.rest in live
        return full and all(item in live for item in items[: kind.min_items])
    return True


def _pruned(kinds: _Kinds, live: set[State]) -> _Kinds:
    """`kinds` without the states and parts that have no value."""
    pruned: _Kinds = {}
    for state in live:
        kept = [kind for kind in kinds[state] if _is_live(kind, live)]
        pruned[state] = tuple(dict.fromkeys(_prune(kind, live) for kind in kept))
    return pruned


def _prune(kind: Kind, live: set[State]) -> Kind:
    if isinstance(kind, Objects):
        members = tuple(member for member in kind.members if member.state in live)
        others = tuple(other for other in kind.others if other.state in live)
        return dataclasses.replace(kind, members=members, others=others)
    if isinstance(kind, Arrays):
        prefix = kind.prefix
        dead = next((i for i, state in enumerate(prefix) if state not in live), None)
        if dead is not None:
            return dataclasses.replace(kind, prefix=prefix[:dead], rest=None)
        if kind.rest is not None and kind.rest not in live:
            return dataclasses.replace(kind, rest=None)
    return kind


def _reachable(start: State, kinds: _Kinds) -> _Kinds:
    found: _Kinds = {start: kinds[start]}
    todo = [start]
    while todo:
        for kind in kinds[todo.pop()]:
            for part in _parts(kind):
                if part not in found:
                    found[part] = kinds[part]
                    todo.append(part)
    return found
