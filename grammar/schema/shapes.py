"""The form each keyword's value must have, checked before anything reads it.

What lives here: the table of forms. What does not: what the values mean (flatten.py and the
handlers), and whether a reference or a pattern inside them is good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.schema.values import exact, is_number

__all__ = ["check_shape"]


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _named(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and exact(value).denominator == 1


_SCHEMA = (_is_schema, "a schema (an object or a boolean)")
_SCHEMAS = (lambda value: bool(value) and _are_schemas(value), "a list of schemas")
_MEMBERS = (_named(_is_schema), "an object of schemas")
_COUNT = (_is_count, "a whole number of at least 0")
_BOUND = (is_number, "a number")
_OPEN_BOUND = (lambda value: is_number(value) or isinstance(value, bool), "a number or a boolean")
_TEXT = (lambda value: isinstance(value, str), "a string")
_NEEDED = _named(lambda value: isinstance(value, str) or _is_schema(value) or _are_texts(value))

_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties",
         "additionalItems", "unevaluatedProperties", "unevaluatedItems"),
        _SCHEMA,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _MEMBERS),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
         "minContains", "maxContains"),
        _COUNT,
    ),
    **dict.fromkeys(("minimum", "maximum"), _BOUND),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _OPEN_BOUND),
    **dict.fromkeys(("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"), _TEXT),
    "type": (lambda value: isinstance(value, str) or _are_texts(value), "a type or a list of them"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),
    "items": (lambda value: _is_schema(value) or _are_schemas(value), "a schema or a list of them"),
    "prefixItems": (_are_schemas, "a list of schemas"),
    "required": (_are_texts, "a list of names"),
    "uniqueItems": (lambda value: isinstance(value, bool), "a boolean"),
    "dependencies": (_NEEDED, "an object of schemas or lists of names"),
    "dependentRequired": (_named(_are_texts), "an object of lists of names"),
}  # fmt: skip


def check_shape(schema: dict[str, Any], path: str) -> None:
    """Raise `ConstraintError` for a keyword of `schema` whose value has the wrong form."""
    for keyword, value in schema.items():
        check, wanted = _SHAPES.get(keyword, (None, ""))
        if check is not None and not check(value):
            raise ConstraintError(
                f"{keyword!r} at {path} must be {wanted}, not {_short(value)}",
                keyword=keyword,
                path=path,
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
