"""The matcher's contract: masks, ends, rollback, copies, forced tokens, the way to the end."""

import json
import re

import numpy as np
import pytest

from phloem.errors import ConstraintError
from phloem.grammar.spec import Constraint
from phloem.grammar.testing import accepts

ANSWER = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "sources": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "confidence": {"enum": ["low", "medium", "high"]},
    },
    "required": ["answer", "sources", "confidence"],
    "additionalProperties": False,
}


def encode(compiler, text):
    return list(compiler.tokenizer.ll.tokenize_str(text))


def decode(compiler, tokens):
    return compiler.tokenizer.ll.decode_bytes(tokens).decode()


def test_the_end_is_allowed_exactly_where_the_text_is_complete(compiler, allowed_tokens):
    """End-of-sequence ids are in the mask in accepting states, and nowhere else."""
    ends = set(compiler.tokenizer.eos_ids)
    assert len(ends) > 1
    matcher = compiler.matcher(Constraint("regex", "abc?"))
    for letter, complete, finished in (("a", False, False), ("b", True, False), ("c", True, True)):
        matcher.accept(encode(compiler, letter)[0])
        found = set(allowed_tokens(compiler, matcher))
        assert matcher.is_complete() is complete
        assert found & ends == (ends if complete else set())
        assert matcher.is_finished() is finished is (found == ends)


def test_masks_go_into_numpy_and_torch_buffers_alike(compiler):
    """The same bits are written whatever array the engine owns, and a wrong size is refused."""
    torch = pytest.importorskip("torch")
    matcher = compiler.matcher(Constraint("regex", "[a-f]+"))
    ours = np.zeros(compiler.tokenizer.words, dtype=np.int32)
    theirs = torch.zeros(compiler.tokenizer.words, dtype=torch.int32)
    assert matcher.fill_mask(ours)
    assert matcher.fill_mask(theirs)
    assert ours.any()
    assert (theirs.numpy() == ours).all()
    with pytest.raises(ValueError, match="bytes"):
        matcher.fill_mask(ours[1:].copy())


def test_rollback_and_copies(compiler, allowed_tokens):
    """After a rollback, also over the end, the mask is as before; a copy goes its own way."""
    matcher = compiler.matcher(Constraint("regex", "(yes|no), because"))
    tokens = encode(compiler, "yes, bec")
    masks = []
    for token in tokens:
        masks.append(allowed_tokens(compiler, matcher))
        matcher.accept(token)
    twin = matcher.copy()
    assert twin.accepts_prefix(encode(compiler, "ause")) == len(encode(compiler, "ause"))
    for token in [*encode(compiler, "ause"), compiler.tokenizer.eos_ids[0]]:
        twin.accept(token)
    assert twin.is_finished()
    assert not matcher.is_complete()
    twin.rollback(1)
    assert twin.is_complete()
    for mask in reversed(masks):
        matcher.rollback(1)
        assert allowed_tokens(compiler, matcher) == mask
    with pytest.raises(ValueError, match="undo"):
        matcher.rollback(1)


@pytest.mark.parametrize(
    ("run", "count"),
    [("", 0), ("a", 1), ("x", 0), ("abxd", 2), ("ab$", 3), ("ab$$", 3), ("$", 0), ("abc$", 4)],
)
def test_looking_ahead_changes_nothing(compiler, allowed_tokens, run, count):
    """`accepts_prefix` counts the tokens that fit, ends ("$") included, and leaves the state."""
    matcher = compiler.matcher(Constraint("regex", "abc?"))
    end = compiler.tokenizer.eos_ids[0]
    tokens = [end if letter == "$" else encode(compiler, letter)[0] for letter in run]
    before = allowed_tokens(compiler, matcher)
    assert matcher.accepts_prefix(tokens) == count
    assert allowed_tokens(compiler, matcher) == before
    for done, token in enumerate(tokens[:count]):
        assert matcher.accepts_prefix([token]) == 1
        assert matcher.accepts_prefix(tokens[done:]) == count - done
        matcher.accept(token)
    assert matcher.accepts_prefix(tokens[count:]) == 0


def test_errors_are_never_silent(compiler):
    """A token outside the mask is an error at once, and every later call repeats it."""
    matcher = compiler.matcher(Constraint("regex", "ab"))
    with pytest.raises(ConstraintError):
        matcher.accept(encode(compiler, "x")[0])
    for call in (matcher.is_complete, matcher.is_finished, matcher.forced):
        with pytest.raises(ConstraintError):
            call()


def test_forced_tokens_are_the_tokenizers_own(compiler):
    """Where one text only is allowed, forced tokens are its encoding and end before a choice."""
    matcher = compiler.matcher(Constraint("json_schema", json.dumps(ANSWER)))
    forced = matcher.forced()
    text = decode(compiler, forced)
    assert '{"answer":"'.startswith(text)
    assert len(text) > 5
    assert forced == encode(compiler, '{"answer":"')[: len(forced)]
    free = compiler.matcher(Constraint("regex", "[ab]c"))
    assert free.forced() == []


@pytest.mark.parametrize(
    ("constraint", "so_far"),
    [
        (Constraint("json_schema", json.dumps(ANSWER)), ""),
        (Constraint("json_schema", json.dumps(ANSWER)), '{"answer":"it is \\"'),
        (Constraint("json_schema", json.dumps(ANSWER)), '{"answer":"","sources":[12'),
        (Constraint("json_schema", "{}"), '[[{"a":[{"b":"'),
        (Constraint("regex", r"(yes|no), because [a-z ,]{10,60}\."), "yes, bec"),
        (Constraint("regex", "[🦊]{3}"), "🦊"),
        (Constraint("choices", '["left","right"]'), "r"),
        (Constraint("regex", "[0-9]{4}-[0-9]{2}", after="</think>"), "let me </thi"),
    ],
)
def test_closing_completes_the_text(compiler, constraint, so_far):
    """The way to the end is accepted token by token, complete, and no longer than its limit."""
    matcher = compiler.matcher(constraint)
    for token in encode(compiler, so_far):
        matcher.accept(token)
    tokens = matcher.closing(200)
    assert tokens
    assert matcher.closing(len(tokens) - 1) is None
    assert matcher.closing(len(tokens)) == tokens
    for token in tokens:
        matcher.accept(token)
    assert matcher.is_complete()
    assert matcher.closing(0) == []


def test_closing_objects_with_many_required_members(compiler):
    """A way to the end is found, at a cost that does not grow with the choices on it."""
    members = {}
    for number in range(40):
        members[f"optional{number}"] = {}
        members[f"needed{number}"] = {"type": "string", "minLength": 1}
    required = [name for name in members if name.startswith("n")]
    schema = {"type": "object", "properties": members, "required": required}
    matcher = compiler.matcher(Constraint("json_schema", json.dumps(schema)))
    tokens = matcher.closing(4000)
    assert tokens
    assert set(json.loads(decode(compiler, tokens))) >= set(required)


def test_a_constraint_after_a_reasoning_block(compiler, allowed_tokens):
    """Before the trigger all text is free but the end; behind it the constraint holds."""
    rule = Constraint("regex", "[0-9]+", after="</think>")
    matcher = compiler.matcher(rule)
    ends = set(compiler.tokenizer.eos_ids)
    for token in encode(compiler, 'no "limits" 🦊</think>'):
        assert not ends & set(allowed_tokens(compiler, matcher))
        matcher.accept(token)
    texts = {decode(compiler, [token]) for token in allowed_tokens(compiler, matcher)}
    assert texts
    assert all(text.isdecimal() and text.isascii() for text in texts)
    special = Constraint("regex", "[0-9]+", after="<|im_start|>")
    start = compiler.tokenizer.special_ids["<|im_start|>"]
    other = compiler.matcher(special)
    for token in [*encode(compiler, "free"), start, *encode(compiler, "7")]:
        other.accept(token)
    assert other.is_complete()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"choices": ["start", "stop"]}, "start"),
        ({"regex": "start|/start: x/"}, "/start: x/"),
        ({"schema": {"properties": {"start": {"const": "\nstart: "}}}}, '{"start":"\\nstart: "}'),
        ({"lark": 'start: START // start\nSTART: "start" | /x\\/start/'}, "x/start"),
        ({"lark": '# start\n?start: "(" start ")" | "x"'}, "((x))"),
        ({"lark": 'start: start-x\nstart-x: %json {"const": "start"}'}, '"start"'),
    ],
)
def test_what_follows_a_reasoning_block_may_speak_of_a_start(compiler, build, source, text):
    """`after` works whatever words the constraint's own text holds, rules named start included."""
    constraint = build(**source, after="</think>")
    assert accepts(constraint, f"start: no</think>{text}", tokenizer=compiler)
    assert not accepts(constraint, f"</think>{text}x", tokenizer=compiler)
    assert not accepts(constraint, text, tokenizer=compiler)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (ANSWER, '{"answer":"it is \\"so\\"","sources":[12,3],"confidence":"low"}'),
        ({"type": "array", "items": {"type": "string"}, "minItems": 3}, '["a","bcd","","x"]'),
        ({"items": {"items": {"required": ["k"]}}}, '[[{"k":[1,{"b":"c"}]},"x"],[]]'),
    ],
)
def test_a_way_found_before_is_taken_on_from(compiler, schema, text):
    """At each token of a text the way to the end is valid, and not longer than a fresh search's."""
    matcher = compiler.matcher(Constraint("json_schema", json.dumps(schema)))
    so_far = []
    for token in encode(compiler, text):
        way = matcher.closing(200)
        fresh = compiler.matcher(Constraint("json_schema", json.dumps(schema)))
        for earlier in so_far:
            fresh.accept(earlier)
        found = fresh.closing(200)
        assert json.loads(decode(compiler, [*so_far, *way])) is not None
        assert len(way) <= len(found) + 1
        matcher.accept(token)
        so_far.append(token)
    assert matcher.closing(0) == []


@pytest.mark.parametrize(
    "rule",
    [
        Constraint("regex", r"<\|im_start\|>\+"),
        Constraint("regex", r"\+<\|im_start\|>(x|y)?"),
        Constraint("json_schema", '{"const": "a <|im_end|>"}'),
    ],
)
def test_a_special_token_that_is_spelled_out_is_text(compiler, rule):
    """Where the text must be that of a special token, ordinary tokens write it, forced or not."""
    matcher = compiler.matcher(rule)
    way = matcher.closing(100)
    assert matcher.accepts_prefix(way) == len(way) > 0
    written = []
    while not matcher.is_complete():
        forced = matcher.forced()
        for token in forced:
            matcher.accept(token)
        written += forced
    assert not set(written + way) & set(compiler.tokenizer.special_ids.values())
    assert "<|im_" in decode(compiler, written)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\w+@\w+\.\w+$",
        "foo",
        r"(?<=f)oo\b",
        r"\0",
        r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@$!%*?&]).{8,64}$",
        r"^https?://[^\s/]+\.(com|org)/.+$",
        r"[A-Z]{2}\d{6}[A-Z]?",
        r"foo.{0,50}bar.{0,50}baz",
        r"^([a-z]+-){5}[0-9]{4}$",
        r"^(?:\+\d{1,3})?\s?\(?\d{3}\)?[\s.-]\d{3}[\s.-]\d{4}$",
    ],
)
@pytest.mark.parametrize("limit", [3, 40])
def test_a_text_that_a_pattern_still_wants_something_of_is_ended(
    compiler, build, draw, pattern, limit
):
    """A cut text is led over what its pattern wants, be that an order or a word anywhere."""
    for seed in range(2):
        text = draw(compiler, build(schema={"type": "string", "pattern": pattern}), seed, limit)
        assert re.search(pattern, json.loads(text))
