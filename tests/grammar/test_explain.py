"""What `phloem grammar check` is told, and the default tokenizer of the testing helpers."""

import pytest

from phloem.errors import ConfigError
from phloem.grammar import defaults
from phloem.grammar.explain import explain
from phloem.grammar.spec import Constraint
from phloem.grammar.testing import accepts, set_default_tokenizer


def test_a_schema_is_explained(compiler):
    """Bounds, samples, their tokens and the forced share of a schema are told."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    found = explain(schema, compiler=compiler, count=4)
    assert found.problem is None
    assert (found.bounds.min_chars, found.kind) == (len('{"a":"x"}'), "json_schema")
    assert set(found.samples) <= {'{"a":"x"}', '{"a":"yy"}'}
    assert len(found.sample_tokens) == len(found.samples) == 4
    assert 0 < found.forced_share < 1


def test_problems_are_told_with_their_place():
    """What can't be enforced is a finding with keyword, path or position, not an exception."""
    found = explain('{"properties": {"a": {"contains": true, "unevaluatedItems": false}}}')
    assert (found.keyword, found.path) == ("unevaluatedItems", "$.properties.a")
    assert explain("ab[").position == 2
    assert explain("ab[").kind == "regex"


def test_samples_are_valid_and_repeatable():
    """The same seed gives the same samples; a regex's samples show its alternatives."""
    assert explain("(yes|no)!").samples == explain("(yes|no)!").samples
    assert set(explain("(yes|no)!", count=20).samples) == {"yes!", "no!"}


def test_the_default_tokenizer_is_set_from_above(compiler, monkeypatch):
    """Without a setting the helpers say so; with one they use it."""
    monkeypatch.setattr(defaults, "_maker", None)
    monkeypatch.setattr("phloem.grammar.testing._default", None)
    with pytest.raises(ConfigError, match="no default tokenizer"):
        accepts(Constraint("regex", "a"), "a")
    set_default_tokenizer(lambda: compiler)
    assert accepts(Constraint("regex", "a"), "a")
    with pytest.raises(ConfigError, match="no tokenizer"):
        accepts(Constraint("regex", "a"), "a", tokenizer=3)
