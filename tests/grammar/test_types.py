"""Python and Outlines types as constraints, and texts as their values again."""

import dataclasses
import datetime
import enum
from typing import Annotated, Literal, TypedDict

import pytest
from outlines import types as outlines_types
from outlines.types import at_least, either, optional
from pydantic import BaseModel, ConfigDict, Field

from phloem.errors import ConstraintError
from phloem.grammar.analyser import default_analyser
from phloem.grammar.sample import samples
from phloem.grammar.testing import accepts


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Point(BaseModel):
    y: int
    x: int = Field(ge=0)


@dataclasses.dataclass
class Pair:
    left: str
    right: bool


class Loose(TypedDict):
    name: str


@pytest.mark.parametrize(
    ("target", "yes", "no", "value"),
    [
        (int, ["0", "-12"], ["01", "1.0", "+1"], 0),
        (float, ["1.5", "-2e10", "3"], [".5", "1."], 1.5),
        (bool, ["True", "False"], ["true"], True),
        (str, ["any\ntext", ""], [], "any\ntext"),
        (datetime.date, ["2024-02-29"], ["2023-02-29", "2024-13-01"], datetime.date(2024, 2, 29)),
        (datetime.date, ["0001-01-01", "0400-02-29"], ["0000-02-29"], datetime.date.min),
        (
            datetime.datetime,
            ["9999-12-31T00:00:00"],
            ["0000-12-31T00:00:00"],
            datetime.datetime(9999, 12, 31),
        ),
        (datetime.time, ["23:59:00"], ["24:00:00"], datetime.time(23, 59)),
        (Literal["yes", 2], ["yes", "2"], ["no"], "yes"),
        (Mood, ["good", "bad"], ["GOOD"], Mood.GOOD),
        (Literal[Mood.BAD, "x"], ["bad", "x"], ["Mood.BAD", "good"], Mood.BAD),
        (Literal[Mood.BAD] | int, ["bad", "3"], ["good"], Mood.BAD),
        (int | None, ["7", "None"], ["null"], 7),
        (list[int], ["[1,2]", "[]"], ["[1, 2]", '["a"]'], [1, 2]),
        (Point, ['{"y":1,"x":0}'], ['{"x":0,"y":1}', '{"y":1,"x":-1}'], Point(y=1, x=0)),
        (Annotated[int, Field(ge=3)], ["3"], ["2"], 3),
    ],
)
def test_a_type_is_a_constraint_and_back(compiler, target, yes, no, value):
    """`type=` accepts the type's texts, and `parse` gives the first one's value."""
    analyser = default_analyser()
    constraint = analyser.build(type=target)
    for text in yes:
        assert accepts(constraint, text, tokenizer=compiler), text
    for text in no:
        assert not accepts(constraint, text, tokenizer=compiler), text
    assert analyser.parse(constraint, yes[0], target) == value


@pytest.mark.parametrize(
    ("target", "text", "value"),
    [
        (Pair, '{"left":"a","right":true}', Pair("a", True)),
        (Loose, '{"name":"n"}', {"name": "n"}),
        (list[Loose] | None, '[{"name":"n"}]', [{"name": "n"}]),
        (Literal["a", "b"], '"a"', "a"),
        (Mood, '"bad"', Mood.BAD),
        (dict[str, list[float]], '{"k":[1.5]}', {"k": [1.5]}),
    ],
)
def test_a_type_as_a_schema_is_json(compiler, target, text, value):
    """`schema=` writes every type as JSON, forced to an end before tokens run out."""
    analyser = default_analyser()
    constraint = analyser.build(schema=target)
    assert constraint.finish == "force"
    assert accepts(constraint, text, tokenizer=compiler)
    assert analyser.parse(constraint, text, target) == value


def test_outlines_terms(compiler):
    """Terms and combinators of Outlines are regexes, choices and schemas."""
    build = default_analyser().build
    term = "v" + at_least(1, outlines_types.digit) + optional("-rc") + either("!", "?")
    for text, fits in (("v12-rc!", True), ("v1?", True), ("v!", False)):
        assert accepts(build(type=term), text, tokenizer=compiler) is fits
    assert accepts(build(type=outlines_types.ipv4), "10.0.0.1", tokenizer=compiler)
    schema = outlines_types.json_schema({"type": "object", "required": ["a"]})
    assert build(type=schema).kind == "json_schema"


def test_exactly_one_source(build):
    """No source, or two, is an error that names them."""
    with pytest.raises(ConstraintError, match="none"):
        build()
    with pytest.raises(ConstraintError, match="regex, choices"):
        build(regex="a", choices=["b"])
    with pytest.raises(ConstraintError, match="regex must be a text, not int"):
        build(regex=5)
    with pytest.raises(ConstraintError, match="finish is 'soon'"):
        build(regex="a", finish="soon")
    assert build(schema={"type": "integer"}, after="").after is None


def test_choices(compiler, build):
    """A choice that begins another does not hide it; an empty list is refused."""
    constraint = build(choices=["yes", "yes please", "no", "yes"])
    for text in ("yes", "yes please", "no"):
        assert accepts(constraint, text, tokenizer=compiler)
    assert not accepts(constraint, "yes pl", tokenizer=compiler)
    with pytest.raises(ConstraintError, match="empty"):
        build(choices=[])
    with pytest.raises(ConstraintError, match="sequence of strings"):
        build(choices="yes")


def test_values_that_do_not_fit(build):
    """A text that is not of the type is a `ConstraintError`, never a wrong value."""
    analyser = default_analyser()
    with pytest.raises(ConstraintError, match="Point"):
        analyser.parse(build(schema=Point), '{"y":1}', Point)
    with pytest.raises(ConstraintError, match="not JSON"):
        analyser.parse(build(schema={}), "{")


def test_a_constraint_is_plain_data(build):
    """A constraint survives JSON, and equal ones are equal keys."""
    constraint = build(schema=Point, after="</think>", whitespace=True)
    assert type(constraint).from_json(constraint.to_json()) == constraint
    assert len({constraint, build(schema=Point, after="</think>", whitespace=True)}) == 1


@pytest.mark.parametrize(
    ("source", "low", "high"),
    [
        ({"regex": "a{2,5}(b|cc)"}, 3, 7),
        ({"regex": "a*"}, 0, None),
        ({"choices": ["no", "maybe"]}, 2, 5),
        ({"schema": {"enum": ["a", 100]}}, 3, 3),
        ({"schema": Point}, len('{"y":0,"x":0}'), None),
        ({"schema": {"type": "array", "items": {"const": 1}, "minItems": 2}}, 5, None),
        ({"schema": {"type": "object", "minProperties": 1}}, 6, None),
        ({"type": bool}, 4, 5),
    ],
)
def test_bounds(build, source, low, high):
    """The analyser knows the fewest and most characters, and samples keep to them."""
    constraint = build(**source)
    bounds = default_analyser().bounds(constraint)
    assert (bounds.min_chars, bounds.max_chars) == (low, high)
    for text in samples(constraint, 5, soft_limit=60):
        assert low <= len(text) <= (high or len(text))


@pytest.mark.parametrize("target", [Literal["1", 1], enum.Enum("Twice", {"A": 1, "B": "1"})])
def test_values_that_are_written_alike_are_refused(build, target):
    """As bare text two such values can't be told apart; as JSON they can."""
    with pytest.raises(ConstraintError, match="same text"):
        build(type=target)
    assert build(schema=target).kind == "json_schema"
    with pytest.raises(ConstraintError, match="no values"):
        build(type=enum.Enum("Empty", {}))


def test_a_dates_length_is_known(build):
    """A date has ten characters, which is known without asking an automaton."""
    bounds = default_analyser().bounds(build(type=datetime.date), budget_s=0)
    assert (bounds.min_chars, bounds.max_chars) == (10, 10)


def test_bounds_of_lookaround_are_asked_of_automata(build):
    """With a budget, the exact bounds behind a lookahead are found; without, "don't know"."""
    analyser = default_analyser()
    constraint = build(regex="(?!aaa)a{2}[ab]{1,2}")
    assert analyser.bounds(constraint, budget_s=20).max_chars == 4
    quick = analyser.bounds(constraint, budget_s=0.001)
    assert quick.notes
    assert quick.min_chars == 3


def test_members_a_type_would_ignore_are_not_generated():
    """A model's object holds its own members only, nested too, unless it says extra="allow"."""

    class Inner(BaseModel):
        x: int

    class Outer(BaseModel):
        inner: Inner

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        x: int

    analyser = default_analyser()
    closed = analyser.build(schema=Outer)
    assert accepts(closed, '{"inner":{"x":1}}')
    assert not accepts(closed, '{"inner":{"x":1},"y":2}')
    assert not accepts(closed, '{"inner":{"x":1,"y":2}}')
    assert accepts(analyser.build(schema=Open), '{"x":1,"y":2}')
