"""Tags, unions and quotes: constraints made of others."""

import json
import re

import pytest

from phloem.errors import ConstraintError
from phloem.grammar.analyser import default_analyser
from phloem.grammar.sample import samples
from phloem.grammar.spec import Constraint, Span
from phloem.grammar.tags import Tag, calls_or, structural_tags, tool_calls, union
from phloem.grammar.testing import accepts

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "minLength": 1}},
}
CALL = '<tool_call>{"name":"weather","arguments":{"city":"Rome"}}</tool_call>'
PASSAGES = [
    ("a", "The return window is 30 days. Items must be “unused”."),
    ("b", "Übermorgen: within 30 days\nof purchase."),
    ("empty", " "),
]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("no call at all <tool", True),
        (f"so: {CALL} and {CALL} done", True),
        ("<tool_call>", False),
        (CALL.replace("Rome", ""), False),
        (CALL.replace("weather", "time"), False),
        (CALL + "<tool_call>x", False),
        ('<tool_call>{"name":"clock","arguments":{}}</tool_call>', True),
    ],
)
def test_tool_calls(compiler, text, fits):
    """Text is free until the trigger, then a call of one tool, then free again."""
    tools = {"weather": WEATHER, "clock": {"type": "object", "additionalProperties": False}}
    assert accepts(tool_calls(tools), text, tokenizer=compiler) is fits
    if "</tool_call>" not in text:
        assert not accepts(tool_calls(tools, required=True), text, tokenizer=compiler)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("no call", True),
        (CALL, True),
        (CALL + CALL, True),
        (CALL + CALL + CALL, False),
        (CALL + " and so", False),
        ("so " + CALL, True),
        (CALL.replace("Rome", ""), False),
        ("<b>", False),
    ],
)
def test_calls_or_text(compiler, text, fits):
    """The whole text is calls, each with the arguments of its tool's schema, or no call."""
    rule = calls_or({"weather": WEATHER}, Constraint("regex", r"([^<][\s\S]*)?"), at_most=2)
    assert accepts(rule, text, tokenizer=compiler) is fits


def test_tags_may_share_a_trigger(compiler):
    """After a common trigger the beginnings of the tags decide which content follows."""
    tags = [
        Tag("<f=int>", Constraint("regex", "[0-9]+"), "</f>"),
        Tag("<f=word>", Constraint("choices", '["yes","no"]'), "</f>"),
    ]
    constraint = structural_tags(tags, triggers=["<f="], at_most=2)
    for text, fits in (
        ("a<f=int>12</f>b<f=word>no</f>", True),
        ("<f=int>no</f>", False),
        ("<f=other>", False),
        ("<f=int>1</f>" * 3, False),
    ):
        assert accepts(constraint, text, tokenizer=compiler) is fits
    for text in samples(constraint, 5):
        assert len(re.findall("<f=", text)) <= 2


X = Constraint("regex", "x")


@pytest.mark.parametrize(
    ("tags", "options", "problem"),
    [
        (["<fn|a>", "<g>"], {"triggers": ["<fn"]}, "'<g>' begins with none of the triggers"),
        (["<f=a>", "<f=b>"], {"triggers": ["<f=a"]}, "none of the triggers"),
        (["<f=a>"], {"triggers": ["<f=", "<f=a"]}, "part of another"),
        (["<f>"], {"triggers": "<f"}, "sequence of texts"),
        (["<f>"], {"at_least": 2, "at_most": 1}, "from 2 to 1"),
        (["<f>"], {"at_least": -1}, "from -1"),
        (["<f>"], {"at_most": 0}, "from 0 to 0"),
        ([], {}, "at least one tag"),
        ([""], {}, "no empty trigger"),
    ],
)
def test_tags_that_could_never_be_opened_are_refused(tags, options, problem):
    """Each tag has a trigger and each count is one that can be met, whatever the texts hold."""
    with pytest.raises(ConstraintError, match=problem):
        structural_tags([Tag(begin, X, "") for begin in tags], **options)


@pytest.mark.parametrize(
    ("content", "end", "texts"),
    [
        ({"regex": ".*"}, "</f>", {"<f>x</f>": True, "a<f></f></f>b": True, "<f>x</f": False}),
        ({"regex": "[a-z<]{2,}"}, "</f>", {"<f>x<</f>": True, "<f>x</f>": False}),
        ({"regex": "[0-9]+"}, "0", {"<f>10": True, "<f>100<f>20": True, "<f>0": False}),
        ({"regex": "x|x</f>y"}, "</f>", {"<f>x</f>": True, "<f>x</f>y</f>": True}),
        ({"regex": "(?=.*1)[^|]+"}, "|", {"<f>a1|": True, "<f>a|1|": False}),
        ({"choices": ["a", "ab"]}, "b", {"<f>ab": True, "<f>abb<f>ab": True, "<f>aab": False}),
        ({"regex": "[0-9]+"}, "", {"<f>12": True, "<f>12<f>3": True, "<f>1a": True, "<f>a": False}),
        ({"schema": {"type": ["string", "number"]}}, "x", {'<f>"a"x': True, "<f>1.5x": True}),
    ],
)
def test_a_tag_ends_at_the_first_end_that_fits(compiler, build, draw, content, end, texts):
    """What may also go on with the tag's end does not swallow it: no text runs on for ever."""
    constraint = structural_tags([Tag("<f>", build(**content), end)])
    for text, fits in texts.items():
        assert accepts(constraint, text, tokenizer=compiler) is fits, text
    assert draw(compiler, constraint, 1, limit=40) is not None


def test_an_end_like_the_rest_of_a_number_is_refused(build):
    """After JSON that may be a number an end can't begin as a number goes on."""
    for schema in ({"type": "number"}, {"enum": ["a", -1]}):
        for end in ("1", ".", "end"):
            with pytest.raises(ConstraintError, match="rest of a number"):
                structural_tags([Tag("<f>", build(schema=schema), end)])
    assert structural_tags([Tag("<f>", build(schema={"type": "object"}), "end")])


def test_calls_need_a_tool_and_a_count():
    """No tools, or a count of none, is refused where it is written."""
    for make in (tool_calls, lambda tools: calls_or(tools, X)):
        with pytest.raises(ConstraintError, match="no tool"):
            make({})
    with pytest.raises(ConstraintError, match="from 1 to 0"):
        calls_or({"clock": {}}, X, at_most=0)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"type": "object", "minProperties": 2},
    ],
)
def test_what_no_grammar_holds_alone_is_refused_in_parts(build, schema):
    """The refusal names each keyword that may have asked for it, and what to do."""
    for make in (lambda part: union([part, X]), lambda part: structural_tags([Tag("<", part, "")])):
        with pytest.raises(ConstraintError, match=r"uniqueItems.*minProperties") as caught:
            make(build(schema=schema))
        assert caught.value.hint


def test_a_union(compiler, build):
    """A union accepts what any part accepts, and nothing else."""
    both = union([build(regex="[0-9]+"), build(schema={"type": "array"}), build(choices=["n"])])
    for text, fits in (("12", True), ("[1,[]]", True), ("n", True), ("[1", False), ("nn", False)):
        assert accepts(both, text, tokenizer=compiler) is fits
    with pytest.raises(ConstraintError, match="lark"):
        union([both])


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("30 days", True),
        ("Items must be “unused”.", True),
        ("Übermorgen: within 30 days\nof", True),
        ("30 day", False),
        ("days. Übermorgen", False),
        (" days", False),
        ("", False),
    ],
)
def test_quotes_are_whole_words_of_one_passage(compiler, text, fits):
    """A quote is a run of whole words of one passage, without space at its ends."""
    constraint = default_analyser().quote(PASSAGES)
    assert accepts(constraint, text, tokenizer=compiler) is fits


def test_quotes_are_found_again(compiler, draw):
    """What is drawn from the mask is found in the passages, with document and offsets."""
    analyser = default_analyser()
    texts = dict(PASSAGES)
    constraint = analyser.quote(PASSAGES)
    for seed in range(10):
        quote = draw(compiler, constraint, seed)
        spans = analyser.locate(PASSAGES, quote)
        assert spans
        for span in spans:
            assert texts[span.document][span.start : span.end] == quote
    assert analyser.locate(PASSAGES, "30 days") == (Span("a", 21, 28), Span("b", 19, 26))
    with pytest.raises(ConstraintError, match="no passage"):
        analyser.quote([("x", "  ")])


def test_items_that_must_differ(compiler, build, draw):
    """Masks leave out what would repeat an item; drawn arrays have distinct items."""
    schema = {
        "type": "array",
        "items": {"type": "string", "pattern": "^[ab]{1,9}$"},
        "uniqueItems": True,
        "minItems": 3,
        "maxItems": 5,
    }
    for seed in range(20):
        items = json.loads(draw(compiler, build(schema=schema), seed))
        assert 3 <= len(set(items)) == len(items)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 3},
        {"type": "array", "items": {"type": "string", "pattern": "^[ab]{0,2}$"}, "minItems": 7},
        {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2},
         "minItems": 7},
        {"type": "array", "items": {"type": "string", "pattern": "^a?b?$"}, "minItems": 4,
         "maxItems": 4},
    ],
)  # fmt: skip
def test_no_way_on_is_a_dead_end(compiler, build, draw, schema):
    """A token is left out if only repetitions could follow: "0" after 0, the last value's start."""
    for seed in range(8):
        items = json.loads(draw(compiler, build(schema={**schema, "uniqueItems": True}), seed))
        assert len({json.dumps(item) for item in items}) == len(items) >= schema["minItems"]


def test_the_way_out_repeats_nothing(compiler, build):
    """A set that is cut is closed with values that are not in it yet."""
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 4}
    matcher = compiler.matcher(build(schema={**schema, "uniqueItems": True}))
    begun = list(compiler.tokenizer.ll.tokenize_str("[0,"))
    for token in begun:
        matcher.accept(token)
    tokens = matcher.closing(20)
    items = json.loads(compiler.tokenizer.ll.decode_str([*begun, *tokens]))
    assert len(set(items)) == len(items) == 4


def test_names_that_must_differ(compiler, build):
    """Where members are counted, the same name twice does not count twice."""
    constraint = build(schema={"type": "object", "minProperties": 2, "additionalProperties": {}})
    assert accepts(constraint, '{"a":1,"b":1}', tokenizer=compiler)
    assert not accepts(constraint, '{"a":1,"a":1}', tokenizer=compiler)
    matcher = compiler.matcher(constraint)
    tokens = list(compiler.tokenizer.ll.tokenize_str('{"a":1,"ab":{"a":1}'))
    for token in tokens:
        matcher.accept(token)
    twin = matcher.copy()
    twin.rollback(len(tokens))
    assert twin.accepts_prefix(tokens) == len(tokens)
    assert matcher.closing(50) is not None
    *before, last = compiler.tokenizer.ll.tokenize_str(',"a"')
    for token in before:
        matcher.accept(token)
    with pytest.raises(ConstraintError, match="repeats"):
        matcher.accept(last)


def test_a_reasoning_block_before_checked_json(compiler, build):
    """The check of distinct items begins behind the text named by `after`."""
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    constraint = build(schema=schema, after="</think>")
    assert accepts(constraint, '["a","a"]</think>["a","b"]', tokenizer=compiler)
    assert not accepts(constraint, '</think>["a","a"]', tokenizer=compiler)
