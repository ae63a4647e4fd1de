"""Known bugs of structured generation, on the embedded engine with a random model.

A random model with a high temperature goes wherever a mask lets it.
"""

import asyncio
import json
import re

import pytest
import pytest_asyncio
import torch
from jsonschema import Draft202012Validator

import phloem as ph
from phloem.errors import ConstraintError, TruncatedOutput
from phloem.grammar.schema.values import key_of
from phloem.programs.protocol import SamplingParams, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model

OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
BASE = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
KINDS = [{"properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]
DECLARED = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "t": {"const": "ok"}},
    "required": ["t"],
    "patternProperties": {"^x[0-9]$": {"type": "boolean"}},
    "additionalProperties": {"type": "string", "maxLength": 5},
}


@pytest_asyncio.fixture
async def backend():
    """The embedded engine on the tiny random model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = EmbeddedBackend(tiny_model(), kv_tokens=8192)
    yield made
    await made.aclose()
    torch.set_num_threads(threads)


async def events(backend, constraint, prompt="Write something: ", **params):
    """All that a step yields."""
    session = await backend.open("s")
    session.append([Text(prompt)])
    asked = SamplingParams(**{"temperature": 1.0, "max_tokens": 60, **params})
    return [item async for item in session.generate(asked, constraint)]


async def outputs(backend, constraint, seeds, **params):
    """The results for the seeds 0.. `seeds`, generated together."""
    steps = (events(backend, constraint, seed=seed, **params) for seed in range(seeds))
    return [found[-1] for found in await asyncio.gather(*steps)]


@pytest.mark.parametrize(
    "pattern",
    ["[🦊]{3}", "[🌀-🌟]{2}", "[а-я]{4}", "[一-龥]{2}", r'\["(苹果|香蕉)"\]'],  # noqa: RUF001
)
async def test_characters_of_several_tokens(backend, build, pattern):
    """They come whole, and the streamed pieces join to the text."""
    for seed in range(3):
        *pieces, done = await events(backend, build(regex=pattern), seed=seed, max_tokens=40)
        assert re.fullmatch(pattern, done.text)
        assert "\ufffd" not in done.text
        assert "".join(piece.text for piece in pieces) == done.text
        assert all("\ufffd" not in piece.text for piece in pieces)


@pytest.mark.parametrize("pattern", ["(?!aaa)a{2}[ab]", "foo(?=bar)bar", "(?<!x)y", r"cat\b dog"])
async def test_lookaround_and_boundaries_hold(backend, build, pattern):
    """They are honoured, never dropped."""
    rule = build(regex=pattern)
    for done in await outputs(backend, rule, 10, prompt="aaa aaa aaa ", temperature=2.0):
        assert re.fullmatch(pattern, done.text)


async def test_generation_ends_with_the_pattern(backend, build):
    """It does not run on after the last part of an address is as long as it can be."""
    rule = build(regex=rf"{OCTET}(\.{OCTET}){{3}}")
    (done,) = await outputs(backend, rule, 1, temperature=0, max_tokens=64)
    assert re.fullmatch(rule.source, done.text)
    assert done.finish_reason == "stop"
    assert done.usage.generated < 64


async def test_literals_are_json(backend, build):
    """Values of an enum are written as JSON, whatever they hold."""
    values = [None, True, 'say "hi"', "C:\\tmp", "上海", "http://h.example/p", "naïve"]
    known = set(map(key_of, values))
    for done in await outputs(backend, build(schema={"enum": values}), 20, temperature=1.2):
        assert key_of(json.loads(done.text)) in known
    for value in values:
        (done,) = await outputs(backend, build(schema={"const": value}), 1)
        assert key_of(json.loads(done.text)) == key_of(value)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(DECLARED, id="a declared key is no additional one"),
        pytest.param({"type": "integer", "minimum": 3, "maximum": 12}, id="positive bounds"),
        pytest.param({"type": "integer", "minimum": -5, "maximum": -2}, id="negative bounds"),
        pytest.param(
            {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, id="only 1"
        ),
        pytest.param({"type": "number", "minimum": 0.5, "maximum": 0.75}, id="fractions"),
        pytest.param({**BASE, "anyOf": KINDS}, id="siblings of anyOf"),
        pytest.param({**BASE, "oneOf": KINDS}, id="siblings of oneOf"),
        pytest.param({"allOf": [BASE, KINDS[1]]}, id="both of allOf"),
    ],
)
async def test_drawn_values_are_valid(backend, build, schema):
    """Whatever the model draws, all texts are completed in time and validate."""
    validator = Draft202012Validator(schema)
    for done in await outputs(backend, build(schema=schema), 30, temperature=1.5):
        assert done.finish_reason in ("stop", "forced")
        assert not list(validator.iter_errors(json.loads(done.text))), done.text


async def test_a_cut_structure_is_never_called_complete(backend, build):
    """Cut by max_tokens it ends with "length", within the limit, and is the beginning of one."""
    schema = {"type": "object", "required": ["s"], "properties": {"s": {"minLength": 200}}}
    schema["properties"]["s"]["type"] = "string"
    (done,) = await outputs(backend, build(schema=schema, finish="free"), 1, max_tokens=10)
    assert (done.finish_reason, done.usage.generated) == ("length", 10)
    assert done.text.startswith('{"s":"')
    lines = "([^\\n]*\\n){2,6}"
    for done in await outputs(backend, build(regex=lines), 10, max_tokens=5):
        assert done.usage.generated <= 5
        assert done.finish_reason == "length" or re.fullmatch(lines, done.text)


async def test_a_program_sees_that_a_structure_was_cut(backend):
    """A parsed value that was cut is an error that says so; of a text the reason is in its meta."""

    @ph.function
    def parsed(s):
        s += "x" + ph.gen("v", schema={"const": "long " * 20}, finish="free", max_tokens=10)

    @ph.function
    def plain(s):
        s += "x" + ph.gen("v", regex="[a-z]{50}", max_tokens=5)

    with pytest.raises(TruncatedOutput, match="max_tokens"):
        await asyncio.to_thread(parsed.run, backend=backend)
    state = await asyncio.to_thread(plain.run, backend=backend)
    assert state.get_meta_info("v")["finish_reason"] == "length"


@pytest.mark.parametrize("least", [5, 6, 7])
async def test_items_that_must_differ_never_hang(backend, build, least):
    """No choice leads to where only repetitions follow; seven of six values are an error."""
    schema = {
        "type": "array",
        "items": {"type": "string", "pattern": "^[ab]{1,2}$"},
        "uniqueItems": True,
        "minItems": least,
    }
    steps = (events(backend, build(schema=schema), seed=seed) for seed in range(20))
    ended = await asyncio.gather(*steps, return_exceptions=True)
    failed = [end for end in ended if isinstance(end, BaseException)]
    for error in failed:
        assert isinstance(error, ConstraintError)
        assert "every way on would repeat an item" in error.message
        assert error.hint
    for *_, done in (end for end in ended if end not in failed):
        items = json.loads(done.text)
        assert least <= len(items) == len(set(items))
    assert len(failed) == (20 if least == 7 else 0)
    assert (await outputs(backend, build(regex="[ab]"), 1))[0].text in ("a", "b")
