"""Citations: the sources of an answer are documents that were retrieved."""

from __future__ import annotations

import json
from typing import Literal, TypedDict

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

import phloem as ph
from phloem.errors import ConstraintError
from phloem.programs import registry
from phloem.programs.constraints import build
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits
from phloem.runtime.embedded import EmbeddedBackend

DOCS = Hits((Hit("faq#2", "Refunds take ten days.", 2.0), Hit("faq#7", "Returns are free.", 1.0)))


class ById(BaseModel):
    answer: str
    sources: list[str]
    confidence: Literal["low", "high"]


class ByNumber(BaseModel):
    answer: str
    sources: list[int]


class Claim(BaseModel):
    text: str
    sources: list[int]


class Claims(BaseModel):
    claims: list[Claim]


class Loose(TypedDict):
    quoted: str | None


def accepted(schema: object, value: object) -> bool:
    """Whether a step with `schema` may say `value`."""
    constraint = build(registry.default("analyser"), {"schema": schema}).constraint
    assert constraint is not None
    return Draft202012Validator(json.loads(constraint.source)).is_valid(value)


def test_sources_are_the_ids_that_were_found() -> None:
    """A text field takes document ids, a number field the numbers in the prompt, and no other."""
    by_id = ph.cited(ById, DOCS)
    say = {"answer": "x", "confidence": "low"}
    assert accepted(by_id, {**say, "sources": ["faq#7", "faq#2"]})
    assert not accepted(by_id, {**say, "sources": ["faq#3"]})
    assert not accepted(by_id, {**say, "sources": ["faq#2", "faq#2", "faq#2"]})
    by_number = ph.cited(ByNumber, ph.passages(DOCS))
    assert accepted(by_number, {"answer": "x", "sources": [2]})
    for wrong in ([3], [0], [-1], [1.5], ["1"]):
        assert not accepted(by_number, {"answer": "x", "sources": wrong})


def test_passages_that_were_left_out_cannot_be_cited() -> None:
    """Of the text that `passages` made, only what is in it may be cited."""

    @ph.function
    def program(s):
        text = ph.passages(DOCS, max_tokens=30)
        s += ph.user(text) + ph.assistant(ph.gen("a", schema=ph.cited(ByNumber, text)))
        return s["a"], text.sources

    said = '{"answer":"ten days","sources":[1]}'
    answer, sources = program.run(backend=ScriptedBackend([said])).value
    assert isinstance(answer, ByNumber)
    assert [sources[number - 1].id for number in answer.sources] == ["faq#2"]
    assert not accepted(ph.cited(ByNumber, ph.passages(DOCS[:1])), {"answer": "x", "sources": [2]})


def test_nested_optional_and_plain_schemas() -> None:
    """The field is found at any depth, in any form of schema; null stays allowed."""
    nested = ph.cited(Claims, DOCS)
    assert accepted(nested, {"claims": [{"text": "x", "sources": [1]}]})
    assert not accepted(nested, {"claims": [{"text": "x", "sources": [9]}]})
    loose = ph.cited(Loose, DOCS, field="quoted")
    assert accepted(loose, {"quoted": None})
    assert accepted(loose, {"quoted": "faq#2"})
    assert not accepted(loose, {"quoted": "elsewhere"})
    plain = {"type": "object", "properties": {"sources": {"type": "array"}}}
    assert accepted(ph.cited(plain, DOCS), {"sources": ["faq#2"]})
    assert not accepted(ph.cited(plain, DOCS), {"sources": [1]})


def test_where_nothing_was_found() -> None:
    """Without hits a list of sources is empty; a field that must name one is refused."""
    none = ph.cited(ByNumber, Hits())
    assert accepted(none, {"answer": "x", "sources": []})
    assert not accepted(none, {"answer": "x", "sources": [1]})
    with pytest.raises(ConstraintError, match="none was found"):
        accepted(ph.cited({"properties": {"sources": {"type": "string"}}}, Hits()), {})


@pytest.mark.parametrize(
    ("schema", "message"),
    [(dict[str, int], "no property 'sources'"), ({"properties": {"sources": True}}, "can't cite")],
)
def test_a_schema_that_cannot_cite_is_refused(schema: object, message: str) -> None:
    """A schema without the field, or with one of another type, is an error that says so."""
    with pytest.raises(ConstraintError, match=message):
        accepted(ph.cited(schema, DOCS), {})


@pytest.mark.model
def test_a_real_model_cannot_invent_a_source() -> None:
    """Asked to cite what does not exist, at a high temperature, the model cites what was found."""
    backend = EmbeddedBackend()

    @ph.function
    def program(s):
        s += ph.user(f"{ph.passages(DOCS)}\n\nCite the source faq#99. How long are refunds?")
        s += ph.assistant(ph.gen("a", schema=ph.cited(ById, DOCS), max_tokens=60, temperature=1.5))
        return s["a"]

    cited = [program.run(backend=backend, seed=seed).value.sources for seed in range(8)]
    assert {source for sources in cited for source in sources} <= {"faq#2", "faq#7"}
    assert any(cited)
