"""Flats -> the normal form, closed over all reachable states and free of empty parts.

What lives here: `build_model`. Flats become kinds of values whose parts are new states; states
are followed until no new one appears (there are finitely many: sets of subschemas). Then the
states that have any finite value are found by a least fixed point, and all else is cut away: an
optional member that can have no value may not appear, a required one empties its object. So
recursion that never ends is found here, before anything is generated.

What does not live here: the meaning of keywords (flatten.py), the writing (emit.py).
"""

from __future__ import annotations

from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.regex.nodes import ANY_CHAR, And, Not, Rep, literal
from phloem.grammar.schema.arrays import array_kinds
from phloem.grammar.schema.document import Document
from phloem.grammar.schema.evaluate import Evaluator
from phloem.grammar.schema.fixpoint import Kinds, parts, productive, pruned, reachable
from phloem.grammar.schema.flat import Flat, Range, State, has_integer
from phloem.grammar.schema.flatten import Flattener
from phloem.grammar.schema.model import (
    Arrays,
    Kind,
    Literals,
    Model,
    Numbers,
    Objects,
    Strings,
)
from phloem.grammar.schema.objects import object_kinds, without_subsumed
from phloem.grammar.schema.strings import is_empty
from phloem.grammar.schema.tagging import Tags, tags_of, told_apart
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
_EMPTY_DEPTH = 5


def build_model(schema: Any, deadline: float) -> Model:
    """The normal form of `schema`. Raises `ConstraintError` if it can't be enforced exactly."""
    document = Document(schema)
    builder = _Builder(document, deadline)
    start: State = ((True, document.root),)
    kinds = builder.close(start)
    live = productive(kinds)
    if start not in live:
        raise ConstraintError(
            "no finite JSON value satisfies the schema",
            hint="a required member may contradict itself or contain itself without end",
            path="$",
        )
    return Model(start, reachable(start, pruned(kinds, live)))


class _Builder:
    def __init__(self, document: Document, deadline: float) -> None:
        self.document = document
        self.flattener = Flattener(document, deadline)
        self.check_time = self.flattener.check_time
        self.flattener.disjoint = self._disjoint
        self.evaluator = Evaluator(document)
        self._void: dict[State, bool] = {}
        self._kinds: Kinds = {}
        self._tags: dict[int, Tags] = {}

    def close(self, start: State) -> Kinds:
        """The kinds of all states that `start` reaches."""
        todo, found = [start], {start: ()}
        kinds: Kinds = {}
        while todo:
            state = todo.pop()
            kinds[state] = self.kinds(state)
            for kind in kinds[state]:
                for part in parts(kind):
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
            distinct = {json_text(value): value for value in values}
            texts = [text for text, v in distinct.items() if self.satisfies(state, v)]
            if texts:
                found[Literals(tuple(texts))] = None
            self._kinds[state] = without_subsumed(tuple(found))
        return self._kinds[state]

    def satisfies(self, state: State, value: Any) -> bool:
        """Whether a known value is in the state."""
        return all(self.evaluator.valid(number, value) is holds for holds, number in state)

    def _of_flat(self, flat: Flat) -> list[Kind]:
        texts = tuple(
            json_text(value)
            for value in (None, True, False)
            if type_of(value) in flat.types and key_of(value) not in flat.excluded
        )
        kinds: list[Kind] = [Literals(texts)] if texts else []
        for kind in ("integer", "fraction"):
            if kind in flat.types:
                self._check_blockers(flat, kind)
        kinds.extend(_numbers(flat))
        kinds.extend(self._strings(flat))
        if "array" in flat.types:
            self._check_blockers(flat, "array")
            kinds.extend(array_kinds(self, flat))
        if "object" in flat.types:
            self._check_blockers(flat, "object")
            kinds.extend(object_kinds(self, flat))
        return kinds

    def _strings(self, flat: Flat) -> list[Kind]:
        if "string" not in flat.types:
            return []
        texts = [value for value in flat.excluded.values() if isinstance(value, str)]
        languages = flat.languages + tuple(Not(literal(text)) for text in texts)
        lengths = Rep(ANY_CHAR, flat.min_length, flat.max_length)
        if languages and is_empty(And((*languages, lengths))):
            return []
        return [Strings(flat.min_length, flat.max_length, languages)]

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

    def _disjoint(self, beside: int, left: int, right: int) -> bool:
        if told_apart(self._tags_of(left), self._tags_of(right)):
            return True
        state = ((True, beside), *((True, number) for number in sorted({left, right})))
        try:
            return self.void(state)
        except ConstraintError as error:
            if error.details.get("timed_out"):
                raise
            return False  # Whatever is wrong will be found where the branch itself is used.

    def _tags_of(self, number: int) -> Tags:
        if number not in self._tags:
            self._tags[number] = tags_of(self.document, number)
        return self._tags[number]

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
