"""The JSON form of filters, and the meaning every store is held to."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from phloem.errors import RetrievalError
from phloem.retrieval import And, Exists, Not, Or, Range, Term, Terms
from phloem.retrieval.filters import fields_of, matches, parse_filter, values_at

PARSED: list[tuple[Any, Any]] = [
    (None, None),
    (Term("a", 1), Term("a", 1)),
    ({"a": "x"}, Term("a", "x")),
    ({"a": ["x", 2]}, Terms("a", ("x", 2))),
    ({"a": {"gte": 1, "lt": 2}}, Range("a", gte=1, lt=2)),
    ({"a": 1, "b": True}, And((Term("a", 1), Term("b", True)))),
    ({}, And(())),
    ({"term": {"a": "x"}}, Term("a", "x")),
    ({"terms": {"a": ["x"]}}, Terms("a", ("x",))),
    ({"range": {"a": {"gt": 0}}}, Range("a", gt=0)),
    ({"exists": {"field": "a"}}, Exists("a")),
    ({"or": [{"a": 1}, Exists("b")]}, Or((Term("a", 1), Exists("b")))),
    ({"and": [{"a": 1}]}, And((Term("a", 1),))),
    ({"not": {"a": 1}}, Not(Term("a", 1))),
    ({"not": Term("a", 1)}, Not(Term("a", 1))),
    # A field may be called like an operator.
    ({"term": "x"}, Term("term", "x")),
    ({"and": ["x", "y"]}, Terms("and", ("x", "y"))),
    ({"not": "x"}, Term("not", "x")),
    ({"range": {"gte": 1}}, Range("range", gte=1)),
    ({"day": date(2024, 1, 5)}, Term("day", "2024-01-05")),
    ({"at": datetime(2024, 1, 5, tzinfo=UTC)}, Term("at", "2024-01-05T00:00:00+00:00")),
]


@pytest.mark.parametrize(("given", "expected"), PARSED, ids=range(len(PARSED)))
def test_the_json_form(given: Any, expected: Any) -> None:
    """Each JSON form is the typed filter it stands for."""
    assert parse_filter(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        "lang:en",
        ["a"],
        {"a": None},
        {"a": {"gt": None}},
        {"a": {"like": "x"}},
        {"a": {"gt": 1, "lt": "b"}},
        {"range": {"a": 1}},
        {"terms": {"a": "x"}},
        {"a": [["x"]]},
        {"a": object()},
        {"or": [{"a": {}}]},
        {"a": 10**400},
    ],
    ids=range(12),
)
def test_what_is_no_filter_is_refused(given: Any) -> None:
    """A malformed filter is an error that shows the part, never a filter that admits all."""
    with pytest.raises(RetrievalError, match="not a filter"):
        parse_filter(given)


def test_a_filter_without_a_bottom_is_refused() -> None:
    """A filter nested beyond all reason is an error like any other malformed one."""
    given: Any = {"a": 1}
    for _ in range(5_000):
        given = {"not": given}
    with pytest.raises(RetrievalError, match="nested"):
        parse_filter(given)


def test_operators_combine() -> None:
    """& | and ~ build the combined filters."""
    made = (Term("a", 1) & ~Exists("b")) | Range("c", gt=2)
    assert made == Or((And((Term("a", 1), Not(Exists("b")))), Range("c", gt=2)))
    assert fields_of(made) == {"a", "b", "c"}


def test_values_of_nested_and_listed_fields() -> None:
    """Dots go into mappings, also where a key has a dot itself; lists are spread."""
    meta = {"a": {"b": [1, {"c": 2}], "d.e": 3}, "a.b": 4, "n": None}
    assert sorted(values_at(meta, "a.b.c")) == [2]
    assert list(values_at(meta, "a.d.e")) == [3]
    assert list(values_at(meta, "n")) == []
    assert list(values_at(meta, "a.x")) == []


def test_types_do_not_mix() -> None:
    """A boolean is no number, a number no string, and ranges compare like with like."""
    assert not matches(Term("a", 1), {"a": True})
    assert not matches(Term("a", "1"), {"a": 1})
    assert matches(Term("a", 1.0), {"a": 1})
    assert not matches(Range("a", gte=0), {"a": "5"})
    assert matches(Range("a", gte="b"), {"a": ["a", "c"]})
    assert not matches(Range("a", gte="b", lt="c"), {"a": ["a", "d"]})
