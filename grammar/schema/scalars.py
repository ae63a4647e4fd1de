"""Handlers of the keywords about types, literals, numbers and strings.

What lives here: what each demands of a flat, and the flats that break it. What does not:
containers (containers.py) and combinations (logic.py).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from phloem.grammar.regex.nodes import Node, Not
from phloem.grammar.schema.flat import Flat, Range
from phloem.grammar.schema.goals import Choice, Context, Step
from phloem.grammar.schema.numbers import MAX_UNITS, is_power, units
from phloem.grammar.schema.strings import format_language, pattern_language
from phloem.grammar.schema.values import TYPES, exact, lower_bound, upper_bound

__all__ = [
    "broken_format", "broken_literal", "broken_lower", "broken_max_length", "broken_min_length",
    "broken_multiple", "broken_pattern", "broken_type", "broken_upper",
    "format_", "literal", "lower", "max_length", "min_length", "multiple", "pattern", "type_",
    "upper",
]  # fmt: skip

_NUMBERS = ("integer", "fraction")


def _kinds(context: Context) -> frozenset[str]:
    names = context.value if isinstance(context.value, list) else [context.value]
    kinds: set[str] = set()
    for name in names:
        if name == "number":
            kinds.update(_NUMBERS)
        elif name == "any" and context.document.draft == 3:
            kinds.update(TYPES)
        elif isinstance(name, str) and name in TYPES and name != "fraction":
            kinds.add(name)
        else:
            context.refuse(f"names no JSON type: {name!r}")
    return frozenset(kinds)


def type_(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`type`."""
    kinds = _kinds(context)
    steps.append(lambda flat: flat.only(*kinds))


def broken_type(context: Context) -> Choice:
    """Not `type`."""
    others = frozenset(TYPES) - _kinds(context)
    return [[lambda flat: flat.only(*others)]]


def _values(context: Context) -> list[Any]:
    return context.value if context.keyword == "enum" else [context.value]


def literal(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`enum` and `const`."""
    values = _values(context)
    steps.append(lambda flat: flat.allow(values))


def broken_literal(context: Context) -> Choice:
    """Not `enum`, not `const`."""
    values = _values(context)
    scalars = [value for value in values if not isinstance(value, list | dict)]
    option: list[Step] = [lambda flat: flat.exclude(scalars)]
    for index, value in enumerate(values):
        if isinstance(value, list | dict):
            other = _other_than(value)
            number = context.document.variant(context.sub, f"{context.keyword} {index}", other)
            option.append(context.goal(True, number))
    return [option]


def _other_than(value: Any) -> dict[str, Any]:
    """A schema of all values but one container, part by part."""
    size = len(value)
    if isinstance(value, list):
        options: list[Any] = [{"not": {"type": "array"}}, {"minItems": size + 1, "type": "array"}]
        options += [{"type": "array", "maxItems": size - 1}] if size else []
        options += [
            {
                "type": "array",
                "minItems": index + 1,
                "items": [*[{}] * index, {"not": {"enum": [item]}}],
            }
            for index, item in enumerate(value)
        ]
    else:
        options = [
            {"not": {"type": "object"}},
            {"type": "object", "minProperties": size + 1},
            *({"type": "object", "not": {"required": [name]}} for name in value),
            *(
                {"required": [name], "properties": {name: {"not": {"enum": [item]}}}}
                for name, item in value.items()
            ),
        ]
    return {"anyOf": options}


def _within(span: Range, *kinds: str) -> Callable[[Flat], None]:
    def step(flat: Flat) -> None:
        flat.range = flat.range.meet(span)
        if kinds:
            flat.only(*kinds)

    return step


def lower(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`minimum` and `exclusiveMinimum`."""
    low, is_open = lower_bound(context.schema)
    steps.append(_within(Range(low=low, low_open=is_open)))


def broken_lower(context: Context) -> Choice:
    """Below the lower bound."""
    low, is_open = lower_bound(context.schema)
    return [] if low is None else [[_within(Range(high=low, high_open=not is_open), *_NUMBERS)]]


def upper(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`maximum` and `exclusiveMaximum`."""
    high, is_open = upper_bound(context.schema)
    steps.append(_within(Range(high=high, high_open=is_open)))


def broken_upper(context: Context) -> Choice:
    """Above the upper bound."""
    high, is_open = upper_bound(context.schema)
    return [] if high is None else [[_within(Range(low=high, low_open=not is_open), *_NUMBERS)]]


def multiple(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`multipleOf`."""
    step: Fraction = exact(context.value)
    if units(step) > MAX_UNITS and not is_power(step):
        context.refuse(
            f"can't be enforced: {context.value} has more than {MAX_UNITS:,} units of its last "
            "digit",
            hint="use a rounder number, or bound the value only",
        )

    def add(flat: Flat) -> None:
        flat.multiples += (step,)
        if step.denominator == 1:
            flat.types -= {"fraction"}

    steps.append(add)


def broken_multiple(context: Context) -> Choice:
    """Numbers that are no multiple; of 1, they are the fractions."""
    if exact(context.value) == 1:
        return [[lambda flat: flat.only("fraction")]]
    return [[context.blocker(kind)] for kind in _NUMBERS]


def min_length(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`minLength`, in code points."""
    count = context.count()
    steps.append(lambda flat: flat.at_least("min_length", count))


def max_length(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`maxLength`, in code points."""
    count = context.count()
    steps.append(lambda flat: flat.at_most("max_length", count))


def _string(change: Callable[[Flat], None]) -> Choice:
    return [[lambda flat: flat.only("string"), change]]


def broken_min_length(context: Context) -> Choice:
    """Strings that are too short."""
    count = context.count()
    return _string(lambda flat: flat.at_most("max_length", count - 1))


def broken_max_length(context: Context) -> Choice:
    """Strings that are too long."""
    count = context.count()
    return _string(lambda flat: flat.at_least("min_length", count + 1))


def _in(language: Node) -> Callable[[Flat], None]:
    def step(flat: Flat) -> None:
        flat.languages += (language,)

    return step


def _pattern(context: Context) -> Node:
    return pattern_language(context.value)


def pattern(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`pattern`: a search, not a full match."""
    steps.append(_in(_pattern(context)))


def broken_pattern(context: Context) -> Choice:
    """Strings in which the pattern matches nowhere."""
    return _string(_in(Not(_pattern(context))))


def format_(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`format`, where the dialect asserts it."""
    language = format_language(context.document, str(context.value))
    if language is not None:
        steps.append(_in(language))


def broken_format(context: Context) -> Choice:
    """Strings that lack the format."""
    language = format_language(context.document, str(context.value))
    return [] if language is None else _string(_in(Not(language)))
