"""Items that must differ: which tokens are barred, and when it takes a look ahead."""

import json

import pytest

from phloem.errors import ConstraintError
from phloem.grammar.checked import CheckedMatcher
from phloem.grammar.lowering import schema_model
from phloem.grammar.schema.distinct import Tracker
from phloem.grammar.spec import Constraint

PAIRS = {
    "type": "array",
    "uniqueItems": True,
    "items": {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
}


MEMBERS = {
    "type": "object",
    "minProperties": 2,
    "additionalProperties": {"type": ["boolean", "string"]},
}
SETS_OF_MEMBERS = {"type": "array", "uniqueItems": True, "items": MEMBERS}


def _set_of(**item):
    return {"type": "array", "uniqueItems": True, "items": item}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (PAIRS, '[{"a":"x","b":["y"]},{"a":"x","b":["y"'),
        (PAIRS, '[{"a":"]}"},{"a":"]}'),
        (PAIRS, '[{"a":"x"},{"a":"'),
        (PAIRS, "["),
        (MEMBERS, '{"a":true,'),
        (MEMBERS, '{"a":true,"'),
        (MEMBERS, '{"a":true,"b":true,"a'),
        (MEMBERS, '{"a":true,"b":"'),
        (MEMBERS, '{"a":true,"b":'),
        (SETS_OF_MEMBERS, '[{"a":"","b":"x"},{"a":"","b":"x'),
        (SETS_OF_MEMBERS, '[{"a":"","b":true},{"a":"","b":tru'),
    ],
)
def test_the_mask_bars_exactly_the_tokens_that_repeat(compiler, allowed_tokens, schema, text):
    """A token is barred if and only if the text with it can't go on without a repetition."""
    rule = Constraint("json_schema", json.dumps(schema))
    matcher = compiler.matcher(rule)
    assert isinstance(matcher, CheckedMatcher)
    for token in compiler.tokenizer.ll.tokenize_str(text):
        matcher.accept(token)
    allowed = set(allowed_tokens(compiler, matcher))
    inner = set(allowed_tokens(compiler, matcher._inner))
    assert allowed <= inner
    for token in inner - set(compiler.tokenizer.eos_ids):
        twin = matcher.copy()
        try:
            twin.accept(token)
            fits = twin.closing(200) is not None
        except ConstraintError:
            fits = False
        assert fits is (token in allowed), compiler.tokenizer.ll.decode_bytes([token])


@pytest.mark.parametrize(
    ("item", "text", "stuck"),
    [
        ({"type": "string"}, '["a",', False),
        ({"type": "string"}, '["a","a', True),
        ({"type": "string"}, '["a","b', False),
        ({"type": "string", "maxLength": 1}, '["a",', True),
        ({"type": "array", "items": {"type": "null"}}, "[[],", False),
        (PAIRS["items"], '[{"a":"x"},', False),
        (PAIRS["items"], '[{"a":"x"},{"a":"x', True),
    ],
)
def test_a_look_ahead_is_needed_only_where_values_may_run_out(item, text, stuck):
    """Where a new item begins and there are values without end no search is made."""
    tracker = Tracker(schema_model(json.dumps(_set_of(**item))))
    assert tracker.feed(text.encode())
    assert tracker.may_be_stuck() is stuck


@pytest.mark.model
@pytest.mark.parametrize("text", ['{"a":true,"', '{"a":true,"b":"', '{"a":true,"b":'])
def test_few_tokens_are_tried_where_a_name_may_repeat(real, allowed_tokens, monkeypatch, text):
    """Of the tokens that a free text may go on with only those that can end it are tried."""
    tried = []
    goes_on = CheckedMatcher._goes_on
    monkeypatch.setattr(
        CheckedMatcher, "_goes_on", lambda self, data: tried.append(data) or goes_on(self, data)
    )
    matcher = real.matcher(Constraint("json_schema", json.dumps(MEMBERS)))
    for token in real.tokenizer.ll.tokenize_str(text):
        matcher.accept(token)
    allowed_tokens(real, matcher)
    assert len(tried) < 1_000
