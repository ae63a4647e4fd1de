"""Random schemas: what is generated validates, and acceptance is the validator's verdict."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from phloem.errors import ConstraintError
from phloem.grammar.sample import samples
from phloem.grammar.spec import Constraint
from phloem.grammar.testing import accepts_json

NAMES = ["a", "b", "kind", "x1"]
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab", 'x"y', "é", "\t"])
CONSTANTS = st.one_of(SCALARS, st.sampled_from([[], {}, ["a"], {"a": 1}]))
# No "\n": Python's $ matches before a final one, ECMA-262's does not.
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]*$", "^(?!x)", "[^a]"])


def _some(**fields):
    """An object with any subset of these members."""
    return st.fixed_dictionaries({}, optional=fields)


def _extend(inner):
    numbers = _some(
        type=st.sampled_from(["integer", "number"]),
        minimum=st.integers(-5, 5),
        maximum=st.sampled_from([-2, 3, 4.5, 8]),
        exclusiveMinimum=st.sampled_from([-1, 0, 0.5]),
        exclusiveMaximum=st.sampled_from([3, 4.5]),
    )
    strings = _some(
        type=st.just("string"),
        minLength=st.integers(0, 2),
        maxLength=st.integers(0, 4),
        pattern=PATTERNS,
    )
    members = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    objects = _some(
        type=st.just("object"),
        properties=members,
        required=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        additionalProperties=st.one_of(st.just(False), inner),
        patternProperties=st.dictionaries(st.sampled_from(["^x", "a"]), inner, max_size=1),
        minProperties=st.integers(0, 2),
        maxProperties=st.integers(0, 3),
        dependentRequired=st.just({"a": ["b"]}),
        propertyNames=st.sampled_from([{"pattern": "^[a-c]"}, {"enum": ["a", "b"]}]),
    )
    arrays = _some(
        type=st.just("array"),
        items=inner,
        prefixItems=st.lists(inner, min_size=1, max_size=2),
        minItems=st.integers(0, 2),
        maxItems=st.integers(0, 3),
        uniqueItems=st.booleans(),
        contains=inner,
        minContains=st.integers(0, 2),
        maxContains=st.integers(0, 2),
    )
    branches = st.lists(inner, min_size=1, max_size=3)
    logic = st.one_of(
        st.fixed_dictionaries({"anyOf": branches}),
        st.fixed_dictionaries({"oneOf": branches}),
        st.fixed_dictionaries({"allOf": branches}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner, "else": inner}),
        st.fixed_dictionaries({"enum": st.lists(CONSTANTS, min_size=1, max_size=4)}),
        st.fixed_dictionaries({"const": CONSTANTS}),
    )
    return st.one_of(numbers, strings, objects, objects, arrays, logic)


SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.sampled_from([{"type": name} for name in ("string", "integer", "null", "boolean")]),
    ),
    _extend,
    max_leaves=8,
).filter(lambda schema: isinstance(schema, dict))
VALUES = st.recursive(
    st.one_of(SCALARS, st.sampled_from([3, 6, 2.5, "b", "ba", "xa", "aaaa"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*NAMES, "zz"]), inner, max_size=4),
    ),
    max_leaves=8,
)


def _check(compiler, schema, values):
    check = Draft202012Validator(schema)
    try:
        for value in values:
            expected = check.is_valid(value)
            assert accepts_json(schema, value, tokenizer=compiler) is expected, value
    except ConstraintError as error:
        if "no finite" in error.message:
            assert not any(map(check.is_valid, values))
        return
    for text in samples(Constraint("json_schema", json.dumps(schema)), 3, soft_limit=80):
        assert check.is_valid(json.loads(text)), text


RANDOM = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=60, **RANDOM)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=4))
def test_random_schemas_agree_with_the_validator(compiler, schema, values):
    """A value is accepted exactly if jsonschema accepts it, or the schema is refused."""
    _check(compiler, schema, values)


@pytest.mark.slow
@settings(max_examples=4000, **RANDOM)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=6))
def test_many_random_schemas_agree_with_the_validator(compiler, schema, values):
    """The same at full count."""
    _check(compiler, schema, values)
