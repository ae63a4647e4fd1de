"""Types as schemas: whatever a text of the schema says, the type itself takes."""

import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import re
import uuid
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import pydantic
import pytest
from pydantic import BaseModel, Field, TypeAdapter, create_model

from phloem.errors import ConstraintError
from phloem.grammar.analyser import default_analyser
from phloem.grammar.sample import samples
from phloem.grammar.testing import accepts

UTC = dt.UTC


class Size(enum.IntEnum):
    S = 1
    L = 2


class Pair(enum.Enum):
    A = (1, 2)


class Item(NamedTuple):
    name: str
    count: int = 1


class Node(BaseModel):
    value: decimal.Decimal
    below: "dict[Size, Node]" = {}


class Tree(TypedDict):
    below: "list[Tree]"


def _held(**bounds: Any) -> Any:
    return Annotated[decimal.Decimal, Field(**bounds)]


@pytest.mark.parametrize(
    ("target", "values"),
    [
        (dict[int, str], [{1: "a"}, {-20: "b"}, {}]),
        (dict[Annotated[int, Field(ge=1, le=3)], int], [{2: 1}]),
        (dict[Annotated[int, Field(gt=0)], int], [{12: 1}]),
        (dict[float, int], [{1.5: 1}, {-2.0: 1}]),
        (dict[bool, int], [{True: 1}]),
        (dict[uuid.UUID, int], [{uuid.UUID(int=5): 1}]),
        (dict[dt.date, int], [{dt.date(2020, 1, 2): 1}]),
        (dict[Size, int], [{Size.S: 1}]),
        (dict[Literal["a", "b"], int], [{"a": 1}]),
        (dict[Annotated[str, Field(pattern="^[a-z]+$", max_length=3)], int], [{"ab": 1}]),
        (dict[decimal.Decimal, int], [{decimal.Decimal("1.5"): 1}]),
        (decimal.Decimal, [decimal.Decimal("1.50"), decimal.Decimal(-3)]),
        (_held(max_digits=5, decimal_places=2), [decimal.Decimal("-123.45")]),
        (_held(max_digits=3), [decimal.Decimal("1.25"), decimal.Decimal(100)]),
        (_held(max_digits=5, decimal_places=2, ge=0), []),
        (_held(gt=0, lt=1), []),
        (fractions.Fraction, [fractions.Fraction(1, 3)]),
        (complex, [1 + 2j]),
        (dt.datetime, [dt.datetime(2020, 1, 2, 3, 4, 5), dt.datetime(2020, 1, 2, tzinfo=UTC)]),
        (pydantic.AwareDatetime, [dt.datetime(2020, 1, 2, tzinfo=UTC)]),
        (pydantic.NaiveDatetime, [dt.datetime(2020, 1, 2, 3, 4, 5)]),
        (dt.time, [dt.time(1, 2, 3), dt.time(1, 2, 3, 500000)]),
        (dt.timedelta, [dt.timedelta(days=-1, seconds=5), dt.timedelta(seconds=1.5)]),
        (pydantic.UUID4, [uuid.UUID("a8098c1a-f86e-41da-bd1a-00112444be1e")]),
        (pydantic.Base64Str, ["hello", ""]),
        (pydantic.Base64Bytes, [b"\xff\x00hi"]),
        (pydantic.Base64UrlBytes, [b"\xff\xfe\xfd"]),
        (ipaddress.IPv4Network, [ipaddress.IPv4Network("10.16.0.0/12")]),
        (ipaddress.IPv4Interface, [ipaddress.IPv4Interface("1.2.3.4/24")]),
        (ipaddress.IPv6Network, []),
        (ipaddress.IPv6Interface, []),
        (pydantic.IPvAnyAddress, [ipaddress.IPv6Address("::1")]),
        (pydantic.IPvAnyNetwork, []),
        (pydantic.HttpUrl, [pydantic.HttpUrl("https://u:p@a.example:8000/x?y=1#z")]),
        (pydantic.AnyUrl, [pydantic.AnyUrl("mailto:a@b.de"), pydantic.AnyUrl("ws://x.de/")]),
        (pydantic.FileUrl, [pydantic.FileUrl("file:///a/b.txt")]),
        (pydantic.PostgresDsn, [pydantic.PostgresDsn("postgres://u:p@db:5432/app")]),
        (Literal["a", 1, Size.S], ["a"]),
        (Item, [Item("x", 2)]),
        (Node, [Node(value=1, below={Size.L: Node(value=2)})]),
        (create_model("Named", default=(pydantic.UUID4, ...), enum=(dt.time, ...)), []),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_types_schema_holds_the_type_takes(compiler, target, values):
    """Texts of the schema are read as the type, and what the type writes is a text of it."""
    analyser = default_analyser()
    rule = analyser.build(schema=target)
    for seed in range(2):
        for text in samples(rule, 6, seed=seed, soft_limit=60):
            analyser.parse(rule, text, target)
    for value in values:
        text = TypeAdapter(target).dump_json(value).decode()
        assert accepts(rule, text, tokenizer=compiler), text
        assert analyser.parse(rule, text, target) == value


@pytest.mark.parametrize(
    ("target", "word", "path"),
    [
        (create_model("M", a=(dict[str, pydantic.FutureDate], ...)), "dates",
         "$.properties.a.additionalProperties"),
        (Annotated[dt.date, Field(gt=dt.date(2020, 1, 1))], "dates", "$"),
        (create_model("M", a=(list[pydantic.Json[int]], ...)), "JSON inside",
         "$.properties.a.items"),
        (dict[int | None, int], "keys", "$.propertyNames.anyOf.1"),
        (dict[Annotated[int, Field(multiple_of=3)], int], "keys", "$.propertyNames"),
        (dict[Literal[1, 2], int], "keys", "$.propertyNames"),
        (Pair, "values", "$"),
        (pydantic.FilePath, "exists", "$"),
        (create_model("M", a=(int, Field(validation_alias=pydantic.AliasPath("x", "y")))), "alias",
         "$.properties.a"),
        (type[int], "class", "$"),
    ],
)  # fmt: skip
def test_what_a_schema_cant_say_of_a_type_is_refused(build, target, word, path):
    """Nothing of a type is dropped in silence: the error names it, its place and a way out."""
    with pytest.raises(ConstraintError, match=word) as caught:
        build(schema=target)
    assert caught.value.details["path"] == path
    assert caught.value.hint


@pytest.mark.parametrize("target", [Tree, "{", 42], ids=["Tree", "text", "int"])
@pytest.mark.parametrize("source", ["schema", "type"])
def test_what_is_no_type_is_a_constraint_error(build, source, target):
    """A type that contains itself where pydantic can't follow, or no type at all, is refused."""
    with pytest.raises(ConstraintError):
        build(**{source: target})


@pytest.mark.parametrize(
    ("target", "texts"),
    [
        (int | None, {"7": 7, "None": None}),
        (Literal["a", "b"] | None, {"a": "a", "None": None}),
        (bool | Size, {"True": True, "2": Size.L}),
        (str | None, {"None": "None", "x": "x"}),
        (dt.date | Literal["never"], {"2020-01-02": dt.date(2020, 1, 2), "never": "never"}),
    ],
    ids=str,
)
def test_every_text_of_a_union_has_a_value(build, target, texts):
    """Bare text of a union is the value of the first member that has it."""
    rule = build(type=target)
    for text, value in texts.items():
        assert re.fullmatch(rule.source, text)
        assert default_analyser().parse(rule, text, target) == value
    if str not in getattr(target, "__args__", ()):
        with pytest.raises(ConstraintError, match="fit"):
            default_analyser().parse(rule, "?", target)


def test_text_in_json_is_unquoted(build):
    """A `str` asked for as JSON is the text that the JSON spells."""
    assert default_analyser().parse(build(schema=str), r'"a\nb"', str) == "a\nb"
