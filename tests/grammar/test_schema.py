"""JSON Schema constraints: what validates is reachable, what does not is not, or a refusal."""

import json

import pytest
from jsonschema import Draft202012Validator

from phloem.errors import ConstraintError
from phloem.grammar.testing import accepts, accepts_json

LITERALS = {"enum": [None, True, 'say "hi"', "C:\\tmp", "上海", "http://h.example/p", "naïve"]}
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
KEYS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "t": {"const": "ok"}},
    "required": ["t"],
    "patternProperties": {"^x[0-9]$": {"type": "boolean"}},
    "additionalProperties": {"type": "string", "maxLength": 5},
}
VARIANTS = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
    "anyOf": [
        {"properties": {"k": {"const": "a"}}, "required": ["k"]},
        {"properties": {"k": {"const": "b"}}, "required": ["k"]},
    ],
}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (
            LITERALS,
            ["null", "true", r'"say \"hi\""', r'"C:\\tmp"', '"上海"', r'"\u4e0a\u6d77"',
             '"http://h.example/p"', '"naïve"'],
            ["false", '"none"', r'"ä¸\u008aæµ·"', "None", "True"],  # noqa: RUF001
        ),
        ({"const": "naïve"}, ['"naïve"', r'"na\u00efve"', r'"na\u00EFve"'], ['"naive"']),
        (
            {"type": "string", "minLength": 2, "maxLength": 2},
            ['"ab"', r'"\ud83d\ude00x"', '"😀x"', r'"\n\""'],
            [r'"\ud83d\ude00"', '"a"', '"abc"', '"a\n"', r'"\ud83dx"', r'"a\x"'],
        ),
        ({"type": "string", "pattern": "^😀$", "minLength": 1, "maxLength": 1}, ['"😀"'], ['""']),
        ({"type": "string", "enum": ["a\nb"], "maxLength": 3}, [r'"a\nb"'], ['"ab"']),
        (NODE, ['{"v":1}', '{"v":1,"kids":[{"v":2,"kids":[]}]}'],
         ['{"kids":[]}', '{"v":1,"kids":[{"w":2}]}']),
        (
            {"type": "object", "properties": {"a": {"type": "integer"},
             "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"],
             "additionalProperties": False},
            ['{"a":1,"b":2}'], ['{"a":1,"b":"2"}', '{"a":1}'],
        ),
        (
            KEYS,
            ['{"t":"ok"}', '{"n":1,"t":"ok","x1":true,"q":"hey"}'],
            ['{"t":"ok","n":"ten"}', r'{"t":"ok","\u006e":"ten"}', '{"t":"ok","x1":"yes"}',
             '{"t":"ok","q":1}', r'{"t":"ok","\u00781":"yes"}'],
        ),
        ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "9", "10", "12"],
         ["2", "13", "3.5", '"3"', "-4", "03", "+3", "3e0"]),
        ({"type": "integer", "minimum": -5, "maximum": -2}, ["-5", "-2"], ["-6", "-1", "2"]),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, ["1"], ["0", "2"]),
        ({"type": "number", "minimum": 0.5, "maximum": 0.75}, ["0.5", "0.62", "0.75"],
         ["0.49", "0.76", "1", ".6"]),
        ({"type": "number", "maximum": 1.7976931348623157e308}, ["12.5", "-3"], ["1e309"]),
        ({"type": "number", "oneOf": [{"maximum": -2}, {"not": {"type": "integer"}}]},
         ["0.5", "-3", "12345678901234.5"], ["684434147831515368.9", "1", "-2.5"]),
        (VARIANTS, ['{"id":1,"k":"a"}'],
         ['{"k":"a"}', '{"id":1}', '{"id":"1","k":"b"}', '{"id":1,"k":"c"}']),
        ({**VARIANTS, "oneOf": VARIANTS["anyOf"]}, ['{"id":1,"k":"b"}'], ['{"id":1}']),
    ],
)  # fmt: skip
def test_texts_against_schemas(compiler, build, schema, yes, no):
    """A JSON text is accepted, token by token, exactly if the value it spells validates."""
    constraint = build(schema=schema)
    for text in yes:
        assert accepts(constraint, text, tokenizer=compiler), text
    for text in no:
        assert not accepts(constraint, text, tokenizer=compiler), text


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"allOf": [{"required": ["id"]}, {"required": ["k"]}], "type": "object"},
         [{"id": 1, "k": 2}], [{"id": 1}, {"k": 1}, {}]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
         [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [0.5, -2.25], [3, 0, "a"]),
        ({"not": {"enum": ["a", [1], {"b": 2}]}}, ["b", [2], [1, 1], {"b": 3}, {}, None],
         ["a", [1], {"b": 2}]),
        ({"type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
         [{"a": 1, "b": 2}, {"b": 1}, {"c": 1, "d": 2}], [{"a": 1}, {"c": 1}]),
        ({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]},
          "then": {"required": ["x"]}, "else": {"maxProperties": 1}, "type": "object"},
         [{"k": 1, "x": 2}, {"k": 2}, {}], [{"k": 1}, {"k": 2, "x": 3}]),
        ({"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}}, [{"ab": 1}, {}],
         [{"d": 1}]),
        ({"type": "object", "minProperties": 1, "maxProperties": 2,
          "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False},
         [{"a": 1}, {"b": 1, "c": 1}], [{}, {"a": 1, "b": 1, "c": 1}]),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"},
          "z$": {"minimum": 5}}, "additionalProperties": False},
         [{"a": 1}, {"bz": 5}, {"az": 6}], [{"az": 4}, {"az": "x"}, {"q": 1}]),
        ({"type": "array", "contains": {"const": 1}, "maxItems": 3}, [[1], [0, 1], [2, 2, 1]],
         [[], [2], [0, 0, 0, 1]]),
        ({"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxContains": 3},
         [["a", "b"], [1, "a", 1, "b", "c", 1]], [["a"], [], ["a", "b", "c", "d"], [1, 2]]),
        ({"type": "array", "contains": {"type": "string"}, "minContains": 0, "maxContains": 1,
          "maxItems": 3}, [[], [1, 2, 3], [1, "a", 2]], [["a", "b"], [1, 2, 3, 4]]),
        ({"type": "array", "prefixItems": [{}, {"type": "integer"}], "contains":
          {"type": "string"}, "minContains": 2, "minItems": 4},
         [["a", 1, 2, "b"], [0, 1, "a", "b"]], [["a", "b", 1, 1], ["a", 1, "b"], ["a", 1, 2, 3]]),
        ({"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"type": "string"},
          "maxContains": 1}]}, [[1, "a"], ["a", 2, 1, 1]], [["a"], [1], [1, "a", "b"]]),
        ({"type": "array", "not": {"contains": {"type": "string"}, "minContains": 2,
          "maxContains": 3}}, [[], ["a"], ["a", "b", 1, "c", "d"]],
         [["a", "b"], ["a", 1, "b", "c"]]),
        ({"type": "array", "items": False, "contains": {}, "minContains": 0, "maxContains": 1},
         [[]], [[1]]),
        ({"type": "array", "contains": {"const": 5}, "uniqueItems": True, "items":
          {"type": "integer"}}, [[5], [1, 5, 2]], [[5, 5], [1, 1, 5], [1]]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "contains": {"const": 1},
          "minContains": 2}, [[1]], [[2]]),
        ({"type": "array", "items": {"enum": [1, 2, "a"]}, "uniqueItems": True},
         [[], [2, 1], ["a", 1, 2]], [[1, 1], ["a", 2, "a"]]),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True},
         [[], ["a", "b"], ["ab", "a"]], [["a", "a"], ["a", "b", "a"]]),
        ({"type": "array", "uniqueItems": True}, [[1, True, [1]], [{"a": 1}, {"a": 2}]],
         [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [[], []], [{}, {}]]),
        ({"type": "array", "uniqueItems": True, "items": {"type": "object", "minProperties": 2,
          "additionalProperties": {"type": "integer"}}}, [[{"a": 1, "b": 2}, {"a": 1, "b": 3}]],
         [[{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{"a": 1}]]),
        ({"type": "object", "minProperties": 2}, [{"a": 1, "b": 1}], [{"a": 1}]),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, [3], [3.0]),
        ({"$schema": "http://json-schema.org/draft-06/schema#", "type": "integer"}, [3.0], [3.5]),
        ({"type": "number", "multipleOf": 0.25, "minimum": -8}, [-1.5, 2.25, 0, 7.0], [0.3, -9]),
        ({"multipleOf": 0.05}, [0.5, -1.5, 0.05, 12], [0.01, -0.52]),
        ({"multipleOf": 1e-10, "minimum": 0, "maximum": 1}, [1e-10, 0.5, 1], [2, -1]),
        ({"multipleOf": 1e10}, [0, -2e10], [1e9, 15]),
        ({"multipleOf": 0.01, "exclusiveMinimum": 0}, [0.01, 12.5, 3], [0.001, 0, -1]),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer",
          "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties":
          {"a": {"$ref": "#/definitions/i", "maximum": 1}}, "definitions":
          {"i": {"type": "integer"}}}, [{"a": 5}], [{"a": "5"}]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "format": "email"},
         ["no email"], []),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-1-1"]),
        ({"type": "string", "format": "ports"}, ["anything"], []),
        ({"type": "string", "format": "iri"}, ["http://ex.ämple/"], ["not-an-iri"]),
        ({"enum": ["\x7f", "\u2028x", "\x01", "\ufeff", "\x85"]},
         ["\x7f", "\u2028x", "\x01", "\ufeff", "\x85"], ["", "x", "\u2029"]),
        ({"properties": {"\x7f": {"type": "null"}}}, [{"\x7f": None}], [{"\x7f": 1}]),
        ({"$id": "http://a.example/root", "$defs": {"x": {"$id": "sub/x.json", "properties":
          {"y": {"$ref": "#/$defs/y"}, "z": {"$ref": "y.json"}}, "$defs": {"y": {"type": "null"},
          "z": {"$id": "y.json", "oneOf": [{"type": "string"}, {"const": 1}]}}}}, "properties":
          {"p": {"$ref": "sub/x.json"}, "q": {"$ref": "http://a.example/sub/x.json#/$defs/y"}}},
         [{"p": {"y": None, "z": 1}, "q": None}], [{"p": {"y": 1}}, {"q": 2}, {"p": {"z": 2}}]),
        ({"x-custom": 1, "type": "null"}, [None], [0]),
        ({"type": "string", "nullable": True}, ["a"], [None]),
        ({"type": "boolean"}, [True], [1, "true"]),
    ],
)  # fmt: skip
def test_values_against_schemas(compiler, schema, yes, no):
    """A value is accepted exactly if a validator of the schema's dialect accepts it."""
    for value in yes:
        assert accepts_json(schema, value, tokenizer=compiler), value
    for value in no:
        assert not accepts_json(schema, value, tokenizer=compiler), value


@pytest.mark.parametrize(
    ("schema", "word", "details"),
    [
        ({"$ref": "#"}, "itself", {"keyword": "$ref"}),
        ({"$ref": "#/$defs/nope"}, "nope", {"reference": "#/$defs/nope"}),
        ({"properties": {"a": {"$ref": "other.json#/x"}}}, "other.json", {"keyword": "$ref"}),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "finite", {}),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no finite", {"path": "$"}),
        ({"enum": []}, "no finite", {}),
        ({"properties": {"a": {"contains": True, "unevaluatedItems": False}}}, "unevaluatedItems",
         {"keyword": "unevaluatedItems", "path": "$.properties.a"}),
        ({"properties": {"a": {"pattern": r"(a)\1"}}}, "backreference", {"position": 3}),
        ({"items": {"type": "strin"}}, "strin", {"keyword": "type", "path": "$.items"}),
        ({"minLength": -1}, "minLength", {"keyword": "minLength"}),
        ({"not": {"multipleOf": 3}, "type": "integer"}, "multipleOf", {"keyword": "multipleOf"}),
        ({"items": {"multipleOf": 86400}}, "10,000 units", {"keyword": "multipleOf",
         "path": "$.items"}),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 7}]}, "10,000 units",
         {"keyword": "multipleOf"}),
        ({"contains": {"type": "null"}, "minContains": 5000}, "1,200", {"keyword": "contains"}),
        ({"items": {"minLength": 10**12}}, "1,000,000,000", {"path": "$.items"}),
        ({"prefixItems": [{"const": 1}], "items": [{"const": 2}]}, "beside a list", {"path": "$"}),
        ({"required": "a"}, "required", {"keyword": "required"}),
        ("{", "JSON", {}),
        ("[1]", "object or a boolean", {}),
    ],
)  # fmt: skip
def test_refusals_name_the_keyword_and_its_path(build, schema, word, details):
    """What can't be enforced in full is an error before any token, and says where it is."""
    with pytest.raises(ConstraintError, match=word) as caught:
        build(schema=schema)
    for name, value in details.items():
        assert caught.value.details[name] == value


def test_bounded_white_space(compiler, build):
    """With whitespace, a bounded run of it may stand between tokens; without, none at all."""
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    loose, compact = build(schema=schema, whitespace=True), build(schema=schema)
    spaced = '{\n  "a" : [ 1 ,\t2 ]\n}'
    assert accepts(loose, spaced, tokenizer=compiler)
    assert not accepts(compact, spaced, tokenizer=compiler)
    assert accepts(loose, '{"a":[1,2]}', tokenizer=compiler)
    assert not accepts(loose, '{"a":' + " " * 33 + "[]}", tokenizer=compiler)
    assert not accepts(loose, ' {"a":[]}', tokenizer=compiler)


def test_members_come_in_the_schemas_order(compiler, build):
    """The order of members is that of the schema, whatever order its keywords merge in."""
    schema = {
        "properties": {"b": {}, "a": {}},
        "allOf": [{"properties": {"c": {}, "a": {"type": "integer"}}}],
        "required": ["a", "d", "c"],
        "type": "object",
    }
    constraint = build(schema=schema)
    assert accepts(constraint, '{"b":1,"a":2,"c":3,"d":4,"zz":5}', tokenizer=compiler)
    assert not accepts(constraint, '{"a":2,"b":1,"c":3,"d":4}', tokenizer=compiler)
    value = {"d": 4, "zz": 5, "c": 3, "b": 1, "a": 2}
    assert accepts_json(schema, value, tokenizer=compiler)


def test_generated_texts_validate(compiler, build, draw):
    """Texts drawn at random through the masks are JSON that keeps to the schema's limits."""
    for schema in (KEYS, VARIANTS, NODE, LITERALS):
        check = Draft202012Validator(schema)
        for seed in range(6):
            assert check.is_valid(json.loads(draw(compiler, build(schema=schema), seed)))


@pytest.mark.parametrize("place", ["$defs", "definitions", "properties", "dependentSchemas"])
@pytest.mark.parametrize("name", ["enum", "const", "default", "examples"])
def test_a_schema_is_found_by_its_identifier_whatever_it_is_called(compiler, place, name):
    """A name that is a keyword's elsewhere hides neither identifiers nor anchors below it."""
    inner = {"$id": "http://h.example/i", "$anchor": "n", "type": "integer"}
    for reference in ("http://h.example/i", "http://h.example/i#n"):
        schema = {place: {name: inner}, "items": {"$ref": reference}}
        assert accepts_json(schema, [1], tokenizer=compiler)
        assert not accepts_json(schema, ["a"], tokenizer=compiler)
    data = {"$defs": {"a": {"default": inner, "enum": [inner]}}, "$ref": "http://h.example/i"}
    with pytest.raises(ConstraintError, match="can't be resolved"):
        accepts_json(data, 1, tokenizer=compiler)


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("a-b.c", True), ("a--b.c", True), ("abc--d.e", True), ("a.1", True), ("a" * 63, True),
        ("xn--x", False), ("ab--c", False), ("a_b", False), ("a.-b", False), ("a-.b", False),
        ("a" * 64, False), ("", False), ("a.", False), ("ab." * 84 + "ab", False),
    ],
)  # fmt: skip
def test_a_hosts_labels(compiler, host, fits):
    """Names by RFC 1123, less those that may stand for a name in another alphabet."""
    for form in ("hostname", "idn-hostname"):
        schema = {"type": "string", "format": form}
        assert accepts_json(schema, host, tokenizer=compiler) is fits
