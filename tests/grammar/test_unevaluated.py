"""What no keyword evaluates, and dynamic references: judged as a validator does, or refused."""

import itertools

import pytest
from jsonschema.validators import validator_for

from phloem.errors import ConstraintError
from phloem.grammar.testing import accepts_json

D19 = "https://json-schema.org/draft/2019-09/schema"
D20 = "https://json-schema.org/draft/2020-12/schema"
A, B = ({"properties": {name: {"type": "integer"}}, "required": [name]} for name in "ab")
CASES = [
    {"allOf": [A], "properties": {"k": True}, "unevaluatedProperties": False},
    {"$ref": "#/$defs/a", "unevaluatedProperties": {"type": "null"}, "$defs": {"a": A}},
    {"anyOf": [A, B, {"properties": {"k": {"const": 1}}}], "unevaluatedProperties": False},
    {"oneOf": [A, B], "unevaluatedProperties": False},
    {"oneOf": [{"unevaluatedProperties": False, "allOf": [A]}, B]},
    {"if": A, "then": {"properties": {"k": True}}, "else": B, "unevaluatedProperties": False},
    {"if": A, "unevaluatedProperties": False},
    {
        "if": {"required": ["k"]}, "then": {"properties": {"a": True}},
        "properties": {"k": True}, "unevaluatedProperties": False,
    },
    {"dependentSchemas": {"k": A}, "properties": {"k": True}, "unevaluatedProperties": False},
    {"patternProperties": {"^[ab]$": True}, "unevaluatedProperties": False},
    {"allOf": [{"additionalProperties": {"type": "integer"}}], "unevaluatedProperties": False},
    {"properties": {"k": {"allOf": [A], "unevaluatedProperties": False}}, "required": ["k"]},
    {"not": {"required": ["zz"]}, "allOf": [{"anyOf": [A, B]}], "unevaluatedProperties": False},
    {"enum": [{"a": 1}, {"b": "x"}], "anyOf": [A, True], "unevaluatedProperties": False},
    {"prefixItems": [{"type": "string"}], "unevaluatedItems": False},
    {"allOf": [{"prefixItems": [True, A]}], "unevaluatedItems": {"type": "null"}},
    {"anyOf": [{"prefixItems": [{"const": 1}, True]}, {"maxItems": 1}], "unevaluatedItems": False},
    {"items": {"type": "integer"}, "unevaluatedItems": False},
    {"$schema": D19, "items": [True], "unevaluatedItems": False},
    {"not": {"allOf": [A], "unevaluatedProperties": False}},
]  # fmt: skip
TREES = [
    {
        "$schema": D20, "$id": "http://x.example/tree", "$dynamicAnchor": "node",
        "properties": {"v": {"type": "integer"}, "kids": {"items": {"$dynamicRef": "#node"}}},
        "unevaluatedProperties": False,
    },
    {
        "$schema": D19, "$id": "http://x.example/tree", "$recursiveAnchor": True,
        "properties": {"v": {"type": "integer"}, "kids": {"items": {"$recursiveRef": "#"}}},
        "unevaluatedProperties": False,
    },
]  # fmt: skip


def _objects():
    """All objects over a few names and values, and arrays of them."""
    for size in range(3):
        for names in itertools.combinations(("a", "b", "k", "zz"), size):
            for row in itertools.product((1, "x"), repeat=size):
                yield dict(zip(names, row, strict=True))
    yield {"a": 1, "b": 1, "k": 1}
    yield {"a": None, "zz": None}
    yield {"k": {"a": 1}}
    yield {"k": {"a": 1, "b": 2}}
    for size in range(3):
        yield from map(list, itertools.product((1, "x", None), repeat=size))
    yield [1, {"a": 1}, None]


@pytest.mark.parametrize("schema", CASES, ids=str)
def test_what_is_left_unevaluated_keeps_to_the_schema(compiler, schema):
    """Whatever branches hold, a value is accepted exactly if the validator accepts it."""
    schema = {"$schema": D20, **schema}
    check = validator_for(schema)(schema)
    for value in _objects():
        assert accepts_json(schema, value, tokenizer=compiler) is check.is_valid(value), value


@pytest.mark.parametrize("schema", TREES)
def test_a_dynamic_reference_with_one_target(compiler, schema):
    """It means that target, at any depth."""
    check = validator_for(schema)(schema)
    for value in ({"v": 1}, {"kids": [{"v": "x"}]}, {"kids": [{"kids": [{"v": 3}]}]}, {"w": 1},
                  {"kids": [{"w": 1}]}):  # fmt: skip
        assert accepts_json(schema, value, tokenizer=compiler) is check.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {"anyOf": [A], "unevaluatedProperties": False}}, "unevaluatedProperties"),
        ({"contains": {"const": 1}, "unevaluatedItems": False}, "unevaluatedItems"),
        (
            {"anyOf": [{"properties": {f"p{n}": True}} for n in range(9)],
             "unevaluatedProperties": False},
            "unevaluatedProperties",
        ),
        (
            {"$dynamicRef": "#n",
             "$defs": {"a": {"$id": "a", "$dynamicAnchor": "n"},
                       "b": {"$dynamicAnchor": "n", "type": "integer"}}},
            "$dynamicRef",
        ),
        # Members of an enum are judged by the evaluator.
        (
            {"enum": [[1]], "not": {"contains": {"const": 1}, "unevaluatedItems": False}},
            "unevaluatedItems",
        ),
        (
            {"enum": [{"p0": 1}],
             "not": {"anyOf": [{"properties": {f"p{n}": True}} for n in range(9)],
                     "unevaluatedProperties": False}},
            "unevaluatedProperties",
        ),
        (
            {"enum": [["x"]], "items": {"$dynamicRef": "#n"},
             "$defs": {"a": {"$id": "a", "$dynamicAnchor": "n"},
                       "b": {"$dynamicAnchor": "n", "type": "integer"}}},
            "$dynamicRef",
        ),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused(compiler, schema, keyword):
    """Negations, `contains`, too many branches, and references that depend on the way to them."""
    with pytest.raises(ConstraintError) as caught:
        accepts_json(schema, {}, tokenizer=compiler)
    assert caught.value.details["keyword"] == keyword
