"""`unevaluatedProperties` and `unevaluatedItems`: what other keywords have not spoken about.

What lives here: which members and items the keywords of a schema evaluate, as alternatives, and
the handlers. What does not: members and items themselves (containers.py).

What is evaluated depends on which branches hold. An alternative names branches that must hold and
what they evaluate together. Of a value in it at least that much is evaluated, so whoever keeps
to the schema for all the rest is valid; and for a valid value the alternative of all the branches
that hold in it says just that. So the union of the alternatives is exact, without a negation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.grammar.schema.document import Document, Sub
from phloem.grammar.schema.flat import ArrayGroup, Flat, ObjectGroup, Some
from phloem.grammar.schema.goals import Choice, Context, Presence, Step, weak

__all__ = ["Condition", "Seen", "alternatives", "broken_unevaluated", "unevaluated"]

_MAX_ALTERNATIVES = 128

Condition = tuple[bool, int] | str
"""A subschema that must hold or not hold, or the name of a member that is there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is evaluated: members by name and by pattern, the first `items`, or all of them.

    `certain` is False where some items are evaluated by what they are (`contains`).
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    every_member: bool = False
    items: int = 0
    every_item: bool = False
    certain: bool = True

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            self.names | other.names,
            self.patterns | other.patterns,
            self.every_member or other.every_member,
            max(self.items, other.items),
            self.every_item or other.every_item,
            self.certain and other.certain,
        )


_NOTHING = Seen()
_Alternatives = dict[tuple[tuple[Condition, ...], Seen], None]


def alternatives(
    document: Document, sub: Sub, schema: dict[str, Any], keyword: str
) -> list[tuple[tuple[Condition, ...], Seen]] | None:
    """What the other keywords of `schema` (as read) evaluate. None: there are too many ways."""
    others = {name: item for name, item in schema.items() if name != keyword}
    found = _Reader(document).of_schema(sub, others, ())
    return None if found is None else list(found)


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document

    def of_schema(
        self, sub: Sub, schema: dict[str, Any], trail: tuple[int, ...]
    ) -> _Alternatives | None:
        """The alternatives of a schema that holds."""
        found: _Alternatives | None = {((), _own(schema)): None}
        for options in self._applicators(sub, schema, trail):
            found = _product(found, options)
        return found

    def _applicators(
        self, sub: Sub, schema: dict[str, Any], trail: tuple[int, ...]
    ) -> list[_Alternatives | None]:
        def number(value: Any, place: str) -> int:
            return self._document.number(value, sub.base, f"{sub.path}.{place}")

        def branch(value: Any, place: str, *conditions: Condition) -> _Alternatives | None:
            return self._branch(number(value, place), conditions, trail)

        def holding(value: Any, place: str) -> _Alternatives | None:
            return branch(value, place, (True, number(value, place)))

        def listed(keyword: str) -> Iterator[tuple[Any, str]]:
            for index, value in enumerate(schema.get(keyword, ())):
                yield value, f"{keyword}.{index}"

        parts = self._references(sub, schema, trail)
        parts += [branch(*value) for value in listed("allOf")]
        parts += [_or_nothing(holding(*value)) for value in listed("anyOf")]
        if "oneOf" in schema:
            parts.append(_union(holding(*value) for value in listed("oneOf")))
        if "if" in schema:
            test = number(schema["if"], "if")
            # What `then` evaluates depends on the condition, also where that evaluates nothing.
            then = branch(schema.get("then", True), "then", (True, test))
            otherwise = branch(schema.get("else", True), "else", (False, test))
            parts.append(_union([_product(holding(schema["if"], "if"), then), otherwise]))
        for keyword in ("dependentSchemas", "dependencies"):
            for name, value in schema.get(keyword, {}).items():
                if isinstance(value, dict):
                    parts.append(_or_nothing(branch(value, f"{keyword}.{name}", name)))
        return parts

    def _references(
        self, sub: Sub, schema: dict[str, Any], trail: tuple[int, ...]
    ) -> list[_Alternatives | None]:
        found = (
            self._document.target(name, schema[name], sub.base, sub.path)
            for name in ("$ref", "$dynamicRef", "$recursiveRef")
            if name in schema
        )
        return [self._branch(target, (), trail) for target in found]

    def _branch(
        self, number: int, conditions: tuple[Condition, ...], trail: tuple[int, ...]
    ) -> _Alternatives | None:
        sub = self._document.subs[number]
        if isinstance(sub.value, bool) or number in trail:
            return {((), _NOTHING): None}
        schema = self._document.read(sub.value)
        found = self.of_schema(sub, schema, (*trail, number))
        if found is None:
            return None
        # A branch that evaluates nothing says nothing here: whether it holds is no question.
        return {
            ((*conditions, *more), seen) if seen != _NOTHING else ((), seen): None
            for more, seen in found
        }


def _own(schema: dict[str, Any]) -> Seen:
    """What a schema's own keywords evaluate."""
    items = schema.get("items")
    prefix = items if isinstance(items, list) else schema.get("prefixItems", ())
    rest = "additionalItems" in schema if isinstance(items, list) else items is not None
    return Seen(
        frozenset(schema.get("properties", ())),
        frozenset(schema.get("patternProperties", ())),
        "additionalProperties" in schema or "unevaluatedProperties" in schema,
        len(prefix),
        rest or "unevaluatedItems" in schema,
        "contains" not in schema,
    )


def _product(left: _Alternatives | None, right: _Alternatives | None) -> _Alternatives | None:
    if left is None or right is None or len(left) * len(right) > _MAX_ALTERNATIVES:
        return None
    return {
        (tuple(dict.fromkeys((*some, *more))), seen | other): None
        for (some, seen), (more, other) in itertools.product(left, right)
    }


def _union(parts: Any) -> _Alternatives | None:
    found: _Alternatives = {((), _NOTHING): None}
    for part in parts:
        if part is None:
            return None
        found.update(part)
    return found


def _or_nothing(part: _Alternatives | None) -> _Alternatives | None:
    return _union([part])


def unevaluated(context: Context, steps: list[Step], choices: list[Choice]) -> None:
    """`unevaluatedProperties` or `unevaluatedItems`: the rest keeps to the schema."""
    of_items = context.keyword == "unevaluatedItems"
    ways = alternatives(context.document, context.sub, context.schema, context.keyword)
    if ways is None:
        context.refuse(
            "can't be enforced: too many combinations of branches evaluate different parts",
            hint="state it by properties, required and anyOf",
        )
    if of_items and not all(seen.certain for _, seen in ways):
        context.refuse("can't be enforced next to 'contains', which evaluates items too")
    options = [
        [
            *_held(context, conditions),
            (_rest_of_items if of_items else _rest_of_members)(context, seen),
        ]
        for conditions, seen in ways
    ]
    if len(options) == 1:
        steps.extend(options[0])
    else:
        choices.append(options)


def broken_unevaluated(context: Context) -> Choice:
    """Not that: exact for members where no branch is conditional, and no negation else."""
    if context.keyword == "unevaluatedItems":
        return [[context.blocker("array")]]
    ways = alternatives(context.document, context.sub, context.schema, context.keyword) or ()
    if len(ways) != 1:
        return [[context.blocker("object")]]
    ((_, seen),) = ways
    if seen.every_member:
        return []
    some = Some(context.op(False, context.value), seen.names, tuple(sorted(seen.patterns)))

    def step(flat: Flat) -> None:
        flat.only("object")
        flat.some += (some,)

    return [[step, weak]]


def _held(context: Context, conditions: Sequence[Condition]) -> list[Step]:
    return [
        Presence(condition, True, context.order)
        if isinstance(condition, str)
        else context.goal(*condition)
        for condition in conditions
    ]


def _rest_of_members(context: Context, seen: Seen) -> Callable[[Flat], None]:
    anything = context.op(True, True)
    group = ObjectGroup(
        context.order,
        dict.fromkeys(sorted(seen.names), anything),
        tuple((text, anything) for text in sorted(seen.patterns)),
        None if seen.every_member else context.op(True, context.value),
    )

    def step(flat: Flat) -> None:
        flat.objects += (group,)

    return step


def _rest_of_items(context: Context, seen: Seen) -> Callable[[Flat], None]:
    rest = None if seen.every_item else context.op(True, context.value)
    group = ArrayGroup((None,) * seen.items, rest)

    def step(flat: Flat) -> None:
        flat.arrays += (group,)

    return step
