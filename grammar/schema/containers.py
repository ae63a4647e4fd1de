"""Handlers of the keywords about arrays and objects.

What lives here: what each demands of a flat, and the flats that break it. "Some member breaks
it" and "two items are equal" have no flat; they become blockers, unless nothing can break it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phloem.grammar.schema.flat import ArrayGroup, Demand, Flat, ObjectGroup, Op, Some
from phloem.grammar.schema.goals import Choice, Context, Presence, Step, weak

__all__ = [
    "array_rest", "broken_array_rest", "broken_contains", "broken_count", "broken_dependencies",
    "broken_members", "broken_names", "broken_required", "broken_unique", "contains", "count",
    "dependencies", "members", "names", "required", "unique",
]  # fmt: skip

_COUNTS = {
    "minItems": ("min_items", "array"),
    "maxItems": ("max_items", "array"),
    "minProperties": ("min_members", "object"),
    "maxProperties": ("max_members", "object"),
}


def count(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`minItems`, `maxItems`, `minProperties`, `maxProperties`."""
    facet, _ = _COUNTS[context.keyword]
    number = context.count()
    if facet.startswith("min"):
        steps.append(lambda flat: flat.at_least(facet, number))
    else:
        steps.append(lambda flat: flat.at_most(facet, number))


def broken_count(context: Context) -> Choice:
    """Too few or too many."""
    facet, kind = _COUNTS[context.keyword]
    number = context.count()

    def step(flat: Flat) -> None:
        flat.only(kind)
        if facet.startswith("min"):
            flat.at_most(facet.replace("min", "max"), number - 1)
        else:
            flat.at_least(facet.replace("max", "min"), number + 1)

    return [[step]]


def _array_parts(context: Context) -> tuple[list[Any], Any]:
    """The item schemas by position, and the one after them, of whatever spelling."""
    schema = context.schema
    prefix = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    if isinstance(rest, list):
        if prefix:
            context.refuse("stands beside a list of 'items', which says the same of other items")
        prefix, rest = rest, schema.get("additionalItems", True)
    return prefix, rest


def array_rest(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`items`, `prefixItems` and `additionalItems`, taken together at the first of them."""
    if not _is_first(context, ("prefixItems", "items")):
        return
    prefix, rest = _array_parts(context)
    group = ArrayGroup(
        tuple(_op(context, item, index) for index, item in enumerate(prefix)),
        _op(context, rest),
    )

    def step(flat: Flat) -> None:
        flat.arrays += (group,)

    steps.append(step)


def broken_array_rest(context: Context) -> Choice:
    """Arrays with an item that breaks its schema."""
    if not _is_first(context, ("prefixItems", "items")):
        return []
    prefix, rest = _array_parts(context)
    choice: Choice = []
    for index, item in enumerate(prefix):
        if not _is_true(item):
            choice.append([_wrong_item(index, context.op(False, item, index))])
    if _is_true(rest):
        return choice
    if rest is False:
        return [*choice, [lambda flat: flat.only("array"), _longer(len(prefix))]]
    if prefix:
        return [*choice, [context.blocker("array")]]
    return [[_counting(context.op(False, rest), 1)]]


def _wrong_item(index: int, op: Op) -> Callable[[Flat], None]:
    def step(flat: Flat) -> None:
        flat.only("array")
        flat.at_least("min_items", index + 1)
        flat.arrays += (ArrayGroup((*(None,) * index, op), None),)

    return step


def _longer(length: int) -> Callable[[Flat], None]:
    return lambda flat: flat.at_least("min_items", length + 1)


def _counting(op: Op, least: int, most: int | None = None) -> Callable[[Flat], None]:
    def step(flat: Flat) -> None:
        flat.only("array")
        flat.contains += (Demand(op, least, most),)
        flat.at_least("min_items", least)

    return step


def _bounds(context: Context) -> tuple[int, int | None]:
    """How many items are to match, at least and at most."""
    least, most = context.schema.get("minContains", 1), context.schema.get("maxContains")
    return int(least), None if most is None else int(most)


def contains(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`contains` with `minContains` and `maxContains`; other values than arrays are let be."""
    least, most = _bounds(context)
    if least == 0 and most is None:
        return
    op = context.op(True, context.value)

    def step(flat: Flat) -> None:
        if most is not None and most < least:
            flat.types -= {"array"}
        elif most == 0:
            flat.arrays += (ArrayGroup((), context.op(False, context.value)),)
        else:
            flat.contains += (Demand(op, least, most),)
            flat.at_least("min_items", least)

    steps.append(step)


def broken_contains(context: Context) -> Choice:
    """Arrays in which too few items match, or too many."""
    least, most = _bounds(context)
    op = context.op(True, context.value)
    choice: Choice = []
    if least == 1:
        none = ArrayGroup((), context.op(False, context.value))
        choice.append([lambda flat: flat.only("array"), _of(none)])
    elif least:
        choice.append([_counting(op, 0, least - 1)])
    if most is not None:
        choice.append([_counting(op, most + 1)])
    return choice


def _of(group: ArrayGroup) -> Callable[[Flat], None]:
    def step(flat: Flat) -> None:
        flat.arrays += (group,)

    return step


def unique(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`uniqueItems`."""
    if context.value is True:
        steps.append(lambda flat: setattr(flat, "unique", True))


def broken_unique(context: Context) -> Choice:
    """Arrays with two equal items: a blocker."""
    return [[context.blocker("array")]] if context.value is True else []


_MEMBERS = ("properties", "patternProperties", "additionalProperties")


def members(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`properties`, `patternProperties`, `additionalProperties`, at the first of them."""
    if not _is_first(context, _MEMBERS):
        return
    named, patterns, others = _member_parts(context)
    group = ObjectGroup(
        context.order,
        {name: context.op(True, schema, name) for name, schema in named.items()},
        tuple((text, context.op(True, schema, text)) for text, schema in patterns.items()),
        _op(context, others),
    )

    def step(flat: Flat) -> None:
        flat.objects += (group,)

    steps.append(step)


def broken_members(context: Context) -> Choice:
    """Objects with a member that breaks its schema."""
    if not _is_first(context, _MEMBERS):
        return []
    named, patterns, others = _member_parts(context)
    needed = context.schema.get("required", ())
    choice: Choice = []
    for name, schema in named.items():
        if not _is_true(schema):
            option: list[Step] = [_wrong_member(context, name, context.op(False, schema, name))]
            telling = name in needed and _is_tag(schema)
            choice.append(option if telling else [*option, weak])
    choice += [
        [_some(Some(context.op(False, schema, text), within=text)), weak]
        for text, schema in patterns.items()
        if not _is_true(schema)
    ]
    if not _is_true(others):
        op = context.op(False, others)
        choice.append([_some(Some(op, frozenset(named), tuple(patterns))), weak])
    return choice


def _some(some: Some) -> Callable[[Flat], None]:
    def step(flat: Flat) -> None:
        flat.only("object")
        flat.some += (some,)

    return step


def _wrong_member(context: Context, name: str, op: Op) -> Callable[[Flat], None]:
    group = ObjectGroup(context.order, {name: op})

    def step(flat: Flat) -> None:
        flat.only("object")
        flat.required.setdefault(name, context.order)
        flat.objects += (group,)

    return step


def _member_parts(context: Context) -> tuple[dict[str, Any], dict[str, Any], Any]:
    schema = context.schema
    named, patterns = (schema.get(name, {}) for name in _MEMBERS[:2])
    return named, patterns, schema.get("additionalProperties", True)


def required(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`required`."""
    for index, name in enumerate(context.value):
        steps.append(Presence(name, True, (*context.order, index)))


def broken_required(context: Context) -> Choice:
    """Objects that lack a required member."""
    return [
        [lambda flat: flat.only("object"), Presence(name, False, context.order)]
        for name in context.value
    ]


def names(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`propertyNames`."""
    op = context.op(True, context.value)

    def step(flat: Flat) -> None:
        flat.names += (op,)

    steps.append(step)


def broken_names(context: Context) -> Choice:
    """Objects with a name that breaks the schema of names: a blocker."""
    return [] if _is_true(context.value) else [[context.blocker("object")]]


def dependencies(context: Context, _steps: list[Step], choices: list[Choice]) -> None:
    """`dependencies`, `dependentRequired`, `dependentSchemas`: absent, or what it needs."""
    for name, needed in context.value.items():
        option: list[Step] = []
        if isinstance(needed, str | list):
            wanted = [needed] if isinstance(needed, str) else needed
            option.extend(Presence(other, True, context.order) for other in wanted)
        else:
            option.append(context.goal(True, context.number(needed, name)))
        if option:
            choices.append([[Presence(name, False, context.order)], option])


def broken_dependencies(context: Context) -> Choice:
    """The name is present, and something it needs is missing."""
    choice: Choice = []
    for name, needed in context.value.items():
        present: list[Step] = [
            lambda flat: flat.only("object"),
            Presence(name, True, context.order),
        ]
        if isinstance(needed, str | list):
            wanted = [needed] if isinstance(needed, str) else needed
            choice += [[*present, Presence(other, False, context.order)] for other in wanted]
        else:
            choice.append([*present, context.goal(False, context.number(needed, name))])
    return choice


def _is_first(context: Context, keywords: tuple[str, ...]) -> bool:
    present = [name for name in context.schema if name in keywords]
    return present[0] == context.keyword


def _is_tag(schema: Any) -> bool:
    return isinstance(schema, dict) and ("const" in schema or "enum" in schema)


def _is_true(schema: Any) -> bool:
    return schema is True or schema == {}


def _op(context: Context, schema: Any, *steps: str | int) -> Op | None:
    return None if _is_true(schema) else context.op(True, schema, *steps)
