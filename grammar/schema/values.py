"""JSON values as JSON Schema compares them: numbers by value, booleans apart from numbers.

What lives here: equality, type names and canonical text of values. What does not: schemas.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

__all__ = [
    "TYPES",
    "common_multiple",
    "exact",
    "is_number",
    "json_text",
    "key_of",
    "lower_bound",
    "number_text",
    "type_of",
    "upper_bound",
]

TYPES = ("null", "boolean", "integer", "fraction", "string", "array", "object")
"""The kinds of values; "number" is `integer` (whole, however written) and `fraction`."""


def is_number(value: Any) -> bool:
    """Whether a parsed JSON value is a number (Python's booleans are not)."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def exact(number: float | Decimal) -> Fraction:
    """The number as written in JSON: 0.1 is one tenth, not the nearest float."""
    return Fraction(Decimal(repr(number)) if isinstance(number, float) else number)


def type_of(value: Any) -> str:
    """The kind of a parsed JSON value, one of `TYPES`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    if isinstance(value, dict):
        return "object"
    return "integer" if exact(value).denominator == 1 else "fraction"


def key_of(value: Any) -> str:
    """A text that two values share exactly if JSON Schema calls them equal."""
    if isinstance(value, str):
        return json.dumps(value)
    if is_number(value):
        return f"#{exact(value)}"
    if isinstance(value, list):
        return "[" + ",".join(map(key_of, value)) + "]"
    if isinstance(value, dict):
        items = sorted((json.dumps(name), key_of(item)) for name, item in value.items())
        return "{" + ",".join(f"{name}:{item}" for name, item in items) + "}"
    return json.dumps(value)


def json_text(value: Any) -> str:
    """Compact JSON; whole numbers without fraction, other characters than ASCII as they are."""
    if is_number(value):
        number = exact(value)
        return number_text(number) if abs(number) < 10**21 else json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, dict):
        items = (f"{json_text(name)}:{json_text(item)}" for name, item in value.items())
        return "{" + ",".join(items) + "}"
    return json.dumps(value, ensure_ascii=False)


def common_multiple(numbers: tuple[Fraction, ...]) -> Fraction:
    """The least number that is a whole multiple of each."""
    return Fraction(
        math.lcm(*(number.numerator for number in numbers)),
        math.gcd(*(number.denominator for number in numbers)),
    )


def number_text(number: Fraction) -> str:
    """A decimal numeral for a number that has a finite one, without exponent."""
    if number.denominator == 1:
        return str(number.numerator)
    sign, number = ("-", -number) if number < 0 else ("", number)
    whole, rest = divmod(number.numerator, number.denominator)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, number.denominator)
        digits += str(digit)
    return f"{sign}{whole}.{digits}"


def lower_bound(schema: dict[str, Any]) -> tuple[Fraction | None, bool]:
    """The lower bound of a schema's numbers, and whether it is itself excluded.

    Reads draft 4's boolean `exclusiveMinimum` and the newer numeric one.
    """
    low: Any = schema.get("minimum")
    above: Any = schema.get("exclusiveMinimum")
    if above is True:
        return (None if low is None else exact(low)), True
    if is_number(above) and (low is None or exact(above) >= exact(low)):
        return exact(above), True
    return (None if low is None else exact(low)), False


def upper_bound(schema: dict[str, Any]) -> tuple[Fraction | None, bool]:
    """The upper bound of a schema's numbers, and whether it is itself excluded."""
    high: Any = schema.get("maximum")
    below: Any = schema.get("exclusiveMaximum")
    if below is True:
        return (None if high is None else exact(high)), True
    if is_number(below) and (high is None or exact(below) <= exact(high)):
        return exact(below), True
    return (None if high is None else exact(high)), False
