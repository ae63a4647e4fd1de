"""Metadata as exact terms of one tantivy field, and filters as queries over them.

What lives here: the encoding and the translation. What does not: the meaning of filters
(`filters.matches`), which this follows.

A value is the term FIELD, NUL, type letter, value ("s" string, "n" number, "b" boolean); that a
field has a value at all is the term NUL, FIELD. Tantivy offers no range over text, so a range
looks through the field's distinct values, which is exact whatever the type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tantivy

from phloem.retrieval.filters import (
    And,
    Exists,
    Filter,
    Not,
    Or,
    Range,
    Scalar,
    Term,
    Terms,
    within,
)

__all__ = ["exact_term", "facts_of", "filter_query", "has_term"]

_MAX_TERM_CHARS = 8_000  # tantivy drops terms over 65,530 bytes; servers cap keywords likewise


def facts_of(meta: Mapping[str, Any]) -> list[str]:
    """The terms that stand for `meta`, without duplicates."""
    terms: dict[str, None] = {}
    for field, value in _leaves(meta, ""):
        for end in (*(place for place, char in enumerate(field) if char == "."), len(field)):
            terms[has_term(field[:end])] = None  # an object has what a field inside it has
        terms[exact_term(field, value)] = None
    return list(terms)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, path)
    elif value is not None:
        yield path, value


def has_term(field: str) -> str:
    """The term of every document in which `field` has a value."""
    return f"\0{field}"


def exact_term(field: str, value: Scalar) -> str:
    """The term of every document in which `field` has `value`."""
    if isinstance(value, bool):
        return f"{field}\0b{int(value)}"
    if isinstance(value, str):
        return f"{field}\0s{value[:_MAX_TERM_CHARS]}"
    return f"{field}\0n{float(value)!r}"


def _value_of(term: str, field: str) -> Scalar:
    kind, text = term[len(field) + 1], term[len(field) + 2 :]
    return text if kind == "s" else float(text) if kind == "n" else text == "1"


def filter_query(
    filter_: Filter, schema: tantivy.Schema, searcher: tantivy.Searcher
) -> tantivy.Query:
    """The query that matches the documents `filter_` matches; its scores mean nothing."""
    match filter_:
        case And(filters):
            parts = [(tantivy.Occur.Must, filter_query(f, schema, searcher)) for f in filters]
            return tantivy.Query.boolean_query(parts) if parts else tantivy.Query.all_query()
        case Or(filters):
            parts = [(tantivy.Occur.Should, filter_query(f, schema, searcher)) for f in filters]
            return tantivy.Query.boolean_query(parts) if parts else tantivy.Query.empty_query()
        case Not(inner):
            return tantivy.Query.boolean_query(
                [
                    (tantivy.Occur.Must, tantivy.Query.all_query()),
                    (tantivy.Occur.MustNot, filter_query(inner, schema, searcher)),
                ]
            )
        case Exists(field):
            terms = [has_term(field)]
        case Term(field, value):
            terms = [exact_term(field, value)]
        case Terms(field, values):
            terms = [exact_term(field, value) for value in values]
        case Range(field):
            terms = _terms_within(field, filter_.bounds(), searcher)
    if not terms:
        return tantivy.Query.empty_query()
    return tantivy.Query.term_set_query(schema, "facts", terms)


def _terms_within(
    field: str, bounds: Mapping[str, Scalar], searcher: tantivy.Searcher
) -> list[str]:
    found = searcher.terms_with_prefix("facts", f"{field}\0")
    return [term for term, _ in found if within(_value_of(term, field), bounds)]
