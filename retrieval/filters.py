"""Typed filters over document metadata, and their JSON form.

What lives here: the filter types, the parser of the JSON form, and a plain evaluator (the
meaning of a filter, used by the fake and as the oracle in tests). What does not: how an index
carries a filter out (`embedded/facts.py`, `elastic/bodies.py`).

A field name is a key of `Document.meta`, with dots for nested keys. A list value matches if
any of its items does. Numbers compare as 64-bit floats, strings by code point, so that ISO
dates compare as dates do; a boolean is never a number.

JSON form, everywhere a filter is taken as a mapping:

    {"lang": "en", "year": {"gte": 2020}}         all of: equal, one of (a list), in a range
    {"or": [F, ...]}  {"and": [F, ...]}  {"not": F}
    {"term": {"lang": "en"}}  {"terms": {"lang": ["en", "de"]}}
    {"range": {"year": {"gte": 2020, "lt": 2024}}}  {"exists": {"field": "lang"}}
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

from phloem.errors import InvalidQuery

__all__ = [
    "And",
    "Exists",
    "Filter",
    "Not",
    "Or",
    "Range",
    "Scalar",
    "Term",
    "Terms",
    "fields_of",
    "matches",
    "parse_filter",
    "values_at",
]

Scalar: TypeAlias = str | int | float | bool
_BOUNDS = ("gt", "gte", "lt", "lte")


class _Combinable:
    """The operators `&`, `|` and `~` of every filter."""

    __slots__ = ()

    def __and__(self: Filter, other: Filter) -> And:  # type: ignore[misc]
        return And((self, other))

    def __or__(self: Filter, other: Filter) -> Or:  # type: ignore[misc]
        return Or((self, other))

    def __invert__(self: Filter) -> Not:  # type: ignore[misc]
        return Not(self)


@dataclass(frozen=True, slots=True)
class Term(_Combinable):
    """`field` equals `value`."""

    field: str
    value: Scalar


@dataclass(frozen=True, slots=True)
class Terms(_Combinable):
    """`field` equals one of `values`; no values match nothing."""

    field: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Range(_Combinable):
    """`field` lies within the bounds that are given; all bounds are of one type."""

    field: str
    gt: Scalar | None = None
    gte: Scalar | None = None
    lt: Scalar | None = None
    lte: Scalar | None = None

    def bounds(self) -> dict[str, Scalar]:
        """The bounds that are given, by name."""
        given = {name: getattr(self, name) for name in _BOUNDS}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Exists(_Combinable):
    """`field` has a value."""

    field: str


@dataclass(frozen=True, slots=True)
class And(_Combinable):
    """All of `filters` match; none given matches everything."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or(_Combinable):
    """At least one of `filters` matches; none given matches nothing."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not(_Combinable):
    """`filter` does not match."""

    filter: Filter


Filter: TypeAlias = Term | Terms | Range | Exists | And | Or | Not


def parse_filter(given: Filter | Mapping[str, Any] | None) -> Filter | None:
    """The filter that `given` means, or None for no filter.

    Raises `InvalidQuery` naming the part that is not a filter.
    """
    try:
        return _parse(given)
    except RecursionError:
        raise InvalidQuery(
            "the filter is nested too deeply", hint="say it with fewer levels of and, or and not"
        ) from None


def _parse(given: Filter | Mapping[str, Any] | None) -> Filter | None:
    if given is None:
        return None
    if isinstance(given, Term | Terms | Range | Exists | And | Or | Not):
        return _checked(given)
    if not isinstance(given, Mapping):
        raise _bad(given, "a filter is a mapping or one of phloem's filter types")
    if len(given) == 1:
        ((name, value),) = given.items()
        operator = _operator(name, value)
        if operator is not None:
            return operator
    parts = tuple(_shorthand(str(name), value) for name, value in given.items())
    return parts[0] if len(parts) == 1 else And(parts)


def _checked(given: Filter) -> Filter:
    """A filter built of the types, with its values as `_scalar` wants them."""
    match given:
        case Term(field, value):
            return Term(field, _scalar(field, value))
        case Terms(field, values):
            return Terms(field, _scalars(field, values))
        case Range(field):
            return _range(field, given.bounds())
        case Exists(field):
            return given
        case And(filters) | Or(filters):
            return type(given)(tuple(_parsed(part) for part in filters))
        case Not(inner):
            return Not(_parsed(inner))


def _parsed(part: Any) -> Filter:
    found = _parse(part)
    if found is None:
        raise _bad(part, "a part of a filter can't be None")
    return found


def _operator(name: str, value: Any) -> Filter | None:
    """The explicit form, or None if `{name: value}` is the shorthand of a field `name`."""
    if name in ("and", "or") and isinstance(value, list | tuple) and _all_filters(value):
        parts = tuple(parsed for item in value if (parsed := _parse(item)) is not None)
        return And(parts) if name == "and" else Or(parts)
    if name == "not" and (isinstance(value, Mapping) or _all_filters([value])):
        inner = _parse(value)
        return None if inner is None else Not(inner)
    if not isinstance(value, Mapping) or len(value) != 1 or set(value) <= set(_BOUNDS):
        return None
    ((field, operand),) = value.items()
    if name == "exists" and field == "field" and isinstance(operand, str):
        return Exists(operand)
    if name == "term":
        return Term(field, _scalar(field, operand))
    if name == "terms":
        return Terms(field, _scalars(field, operand))
    if name == "range":
        return _range(field, operand)
    return None


def _all_filters(items: Sequence[Any]) -> bool:
    return all(isinstance(item, Mapping | _Combinable) for item in items)


def _shorthand(field: str, value: Any) -> Filter:
    if isinstance(value, Mapping):
        return _range(field, value)
    if isinstance(value, list | tuple | set | frozenset):
        return Terms(field, _scalars(field, value))
    return Term(field, _scalar(field, value))


def _range(field: str, bounds: Any) -> Range:
    if not isinstance(bounds, Mapping) or not bounds or not set(bounds) <= set(_BOUNDS):
        raise _bad({field: bounds}, "a range takes gt, gte, lt and lte")
    values = {name: _scalar(field, value) for name, value in bounds.items()}
    if len({_kind(value) for value in values.values()}) > 1:
        raise _bad({field: bounds}, "all bounds of a range are numbers, or all are strings")
    return Range(field, **values)


def _scalars(field: str, values: Any) -> tuple[Scalar, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence | set | frozenset):
        raise _bad({field: values}, "terms takes a list of values")
    return tuple(_scalar(field, value) for value in values)


def _scalar(field: str, value: Any) -> Scalar:
    if isinstance(value, date):  # a datetime too
        return value.isoformat()
    if not isinstance(value, str | int | float):
        raise _bad({field: value}, "a value is a string, a number, a boolean or a date")
    if not isinstance(value, str) and not _is_double(value):
        raise _bad({field: value}, "a number must be finite, and no larger than a 64-bit float")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _bad({field: value}, "the text is not valid Unicode") from None
    return value


def _is_double(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _bad(part: Any, why: str) -> InvalidQuery:
    shown = reprlib.repr(part)
    return InvalidQuery(f"not a filter: {shown}", hint=why)


def _kind(value: Scalar) -> str:
    return "b" if isinstance(value, bool) else "s" if isinstance(value, str) else "n"


def fields_of(filter_: Filter | None) -> set[str]:
    """The names of all fields that `filter_` looks at."""
    match filter_:
        case None:
            return set()
        case And(filters) | Or(filters):
            return set().union(*(fields_of(part) for part in filters))
        case Not(inner):
            return fields_of(inner)
        case _:
            return {filter_.field}


def values_at(meta: Mapping[str, Any], field: str) -> Iterator[Any]:
    """All values of `field` (dots go into nested mappings, lists are spread), without None."""
    pending: list[tuple[Any, str]] = [(meta, field)]
    while pending:
        value, path = pending.pop()
        if isinstance(value, list | tuple):
            pending.extend((item, path) for item in reversed(value))
        elif not path:
            if value is not None:
                yield value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if path == key or path.startswith(f"{key}."):
                    pending.append((inner, path[len(key) + 1 :]))


def matches(filter_: Filter | None, meta: Mapping[str, Any]) -> bool:
    """Whether `meta` satisfies `filter_`: the definition that every index follows."""
    match filter_:
        case None:
            return True
        case Term(field, value):
            return any(_equal(found, value) for found in values_at(meta, field))
        case Terms(field, values):
            return any(_equal(f, value) for f in values_at(meta, field) for value in values)
        case Range(field):
            bounds = filter_.bounds()
            return any(within(found, bounds) for found in values_at(meta, field))
        case Exists(field):
            return any(_has_value(found) for found in values_at(meta, field))
        case And(filters):
            return all(matches(part, meta) for part in filters)
        case Or(filters):
            return any(matches(part, meta) for part in filters)
        case Not(inner):
            return not matches(inner, meta)


def _has_value(found: Any) -> bool:
    """A mapping has a value if something inside it does."""
    if isinstance(found, Mapping):
        return any(_has_value(inner) for inner in found.values())
    if isinstance(found, list | tuple):
        return any(_has_value(item) for item in found)
    return found is not None


def _equal(found: Any, value: Scalar) -> bool:
    return _kind(found) == _kind(value) and bool(found == value)


def within(found: Any, bounds: Mapping[str, Any]) -> bool:
    """Whether `found` satisfies every bound; values of another type than the bounds don't."""
    if any(_kind(found) != _kind(bound) for bound in bounds.values()):
        return False
    return (
        ("gt" not in bounds or found > bounds["gt"])
        and ("gte" not in bounds or found >= bounds["gte"])
        and ("lt" not in bounds or found < bounds["lt"])
        and ("lte" not in bounds or found <= bounds["lte"])
    )
