"""Words of a command line become arguments of the program's types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from phloem.errors import ConfigError
from phloem.server.cli.arguments import parse_arguments


@dataclass
class Point:
    x: int
    y: int


def program(
    question: str,
    k: int = 4,
    deep: bool = False,
    tags: list[str] | None = None,
    kind: Literal["a", "b"] = "a",
    at: Point | None = None,
) -> None: ...


def parse(words: str, function: Callable[..., Any] = program, **more: Any) -> dict[str, Any]:
    names = list(inspect.signature(function).parameters)
    return parse_arguments(function, names, words.split("|") if words else [], **more)


def test_text_is_taken_as_it_stands() -> None:
    """A value for a str parameter is never read as JSON."""
    assert parse('--question|"12" {') == {"question": '"12" {'}
    assert parse("--question|12") == {"question": "12"}


def test_values_get_the_annotated_type() -> None:
    """Numbers, lists, choices and objects are made from their text."""
    given = parse('--question|q|--k=7|--tags|["x", "y"]|--kind|b|--at|{"x": 1, "y": 2}')
    assert given == {"question": "q", "k": 7, "tags": ["x", "y"], "kind": "b", "at": Point(1, 2)}


def test_flags_need_no_value() -> None:
    """A bool parameter named alone is true; it can be given a value too."""
    assert parse("--deep|--question|q")["deep"] is True
    assert parse("--question|q|--deep")["deep"] is True
    assert parse("--question|q|--deep|false")["deep"] is False


def test_lists_may_be_named_several_times() -> None:
    """A list parameter collects the values of each time it is named."""

    def tagged(tags: list[str]) -> None: ...

    assert parse("--tags|x|--tags|y", tagged) == {"tags": ["x", "y"]}


def test_dashes_stand_for_underscores_and_pairs_name_anything() -> None:
    """`--user-query` names user_query, and `--arg seed=1` an argument named like an option."""

    def clash(user_query: str, seed: int) -> None: ...

    assert parse("--user-query|q", clash, pairs=["seed=1"]) == {"user_query": "q", "seed": 1}


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("", "missing: question", "--question VALUE"),
        ("--quest|q", "no argument 'quest'", "did you mean --question?"),
        ("--zzz|q", "no argument 'zzz'", "it has --question, --k"),
        ("--question", "--question has no value", "write --question VALUE"),
        ("--question|a|--question|b", "given 2 times", "give it once"),
        ("--question|q|--k|many", "--k: 'many' does not fit", "JSON"),
        ("--question|q|--kind|c", "--kind: 'c' does not fit", "JSON"),
        ("hello", "unexpected 'hello'", "arguments have names"),
    ],
)
def test_a_wrong_word_is_named_with_its_remedy(words: str, message: str, hint: str) -> None:
    """Unknown, missing, doubled and unfit arguments are refused before anything runs."""
    with pytest.raises(ConfigError) as caught:
        parse(words)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
