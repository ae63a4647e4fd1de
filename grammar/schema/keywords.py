"""The table of keywords: which are enforced, which are annotations, which are refused.

What lives here: the dispatch from keyword to handler. What does not: the handlers.

A keyword no dialect knows is an annotation, as the specification rules. A keyword that some
dialect gives a meaning, and that has no handler, is refused wherever it would apply.
"""

from __future__ import annotations

from collections.abc import Callable

from phloem.grammar.schema import containers, logic, scalars, unevaluated
from phloem.grammar.schema.goals import Choice, Context, Step

__all__ = ["NEGATIVE", "POSITIVE", "refuse_unknown"]

Handler = Callable[[Context, list[Step], list[Choice]], None]
Breaker = Callable[[Context], Choice]

_HANDLED: dict[str, tuple[Handler, Breaker]] = {
    "$ref": (logic.reference, logic.broken_reference),
    "$dynamicRef": (logic.reference, logic.broken_reference),
    "$recursiveRef": (logic.reference, logic.broken_reference),
    "allOf": (logic.all_of, logic.broken_all_of),
    "anyOf": (logic.any_of, logic.broken_any_of),
    "oneOf": (logic.one_of, logic.broken_one_of),
    "not": (logic.negation, logic.broken_not),
    "if": (logic.conditional, logic.broken_if),
    "type": (scalars.type_, scalars.broken_type),
    "enum": (scalars.literal, scalars.broken_literal),
    "const": (scalars.literal, scalars.broken_literal),
    "minimum": (scalars.lower, scalars.broken_lower),
    "exclusiveMinimum": (scalars.lower, scalars.broken_lower),
    "maximum": (scalars.upper, scalars.broken_upper),
    "exclusiveMaximum": (scalars.upper, scalars.broken_upper),
    "multipleOf": (scalars.multiple, scalars.broken_multiple),
    "minLength": (scalars.min_length, scalars.broken_min_length),
    "maxLength": (scalars.max_length, scalars.broken_max_length),
    "pattern": (scalars.pattern, scalars.broken_pattern),
    "format": (scalars.format_, scalars.broken_format),
    "items": (containers.array_rest, containers.broken_array_rest),
    "prefixItems": (containers.array_rest, containers.broken_array_rest),
    "minItems": (containers.count, containers.broken_count),
    "maxItems": (containers.count, containers.broken_count),
    "contains": (containers.contains, containers.broken_contains),
    "uniqueItems": (containers.unique, containers.broken_unique),
    "properties": (containers.members, containers.broken_members),
    "patternProperties": (containers.members, containers.broken_members),
    "additionalProperties": (containers.members, containers.broken_members),
    "required": (containers.required, containers.broken_required),
    "minProperties": (containers.count, containers.broken_count),
    "maxProperties": (containers.count, containers.broken_count),
    "propertyNames": (containers.names, containers.broken_names),
    "dependencies": (containers.dependencies, containers.broken_dependencies),
    "dependentRequired": (containers.dependencies, containers.broken_dependencies),
    "dependentSchemas": (containers.dependencies, containers.broken_dependencies),
    "unevaluatedProperties": (unevaluated.unevaluated, unevaluated.broken_unevaluated),
    "unevaluatedItems": (unevaluated.unevaluated, unevaluated.broken_unevaluated),
}

POSITIVE: dict[str, Handler] = {name: pair[0] for name, pair in _HANDLED.items()}
"""Keyword -> what it adds to a flat that must satisfy it."""
NEGATIVE: dict[str, Breaker] = {name: pair[1] for name, pair in _HANDLED.items()}
"""Keyword -> the alternatives that break it."""

_REFUSED: dict[str, tuple[int, int]] = {
    "divisibleBy": (3, 3),
    "disallow": (3, 3),
    "extends": (3, 3),
}
"""Keyword -> the drafts, from first to last, that give it a meaning."""


def refuse_unknown(context: Context) -> None:
    """Raise `ConstraintError` for a keyword of the dialect that has no handler."""
    for name in context.schema:
        first, last = _REFUSED.get(name, (99, 0))
        if first <= context.document.draft <= last and context.schema[name] is not True:
            context.at(name, 0).refuse(
                "can't be enforced", hint="state it by properties, required and anyOf"
            )
