"""What a pattern forces: at its beginning, on its way, at its end; and what is left to ask for."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phloem.errors import ConstraintError
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.remote.checking import Checker
from phloem.runtime.sglang.course import Course, Tokens

MODEL = tiny_model()
TOKENIZER = MODEL.tokenizer
COMPILER = GrammarCompiler(TOKENIZER.to_json(), TOKENIZER.vocab_size, sorted(MODEL.eos_ids))
CHECKER = Checker(COMPILER, TOKENIZER)
BYTES = [TOKENIZER.token_bytes(token) for token in range(TOKENIZER.vocab_size)]

TOKENS = Tokens(BYTES)


def course(pattern: str, *, at_least: int = 3) -> tuple[Course, str]:
    """A pattern's course, on which texts from `at_least` characters on are worth a request; and
    what it begins with."""
    constraint = Constraint("regex", pattern)
    made = Course(
        constraint, CHECKER.matcher(constraint), TOKENS, pays=lambda text: len(text) >= at_least
    )
    return made, spelled(made.begin(100))


def spelled(tokens: list[int]) -> str:
    return b"".join(BYTES[token] for token in tokens).decode()


def source(made: Course) -> str | None:
    return None if made.rest is None else made.rest.source


@pytest.mark.parametrize(
    ("pattern", "begun", "rest"),
    [
        (r'\{"order": "[0-9]{6}"', '{"order": "', '[0-9]{6}"'),
        (" [0-9]", " ", "[0-9]"),
        (r" (yes|no), because", " ", "(yes|no), because"),
        (r"a\.b\+[x|y]", "a.b+", "[x|y]"),
        ("é[0-9]", "é", "[0-9]"),
        ("abc*", "ab", "c*"),
        ("abc?d", "ab", "c?d"),
        ("abc{2}", "ab", "c{2}"),
        ("abc", "ab", "c"),
        (r"ab\d", "ab", r"\d"),
        ("a[]|]b|c", "", "a[]|]b|c"),
        ("ab|ac", "", "ab|ac"),
        ("(ab|ac)", "", "(ab|ac)"),
        ("(?i)ab", "", "(?i)ab"),
        ("ab(?=c)c", "ab", "(?=c)c"),
        (r"ab\bc?", "", r"ab\bc?"),
    ],
)
def test_the_beginning_is_cut_off(pattern: str, begun: str, rest: str) -> None:
    """What is no literal, may repeat, or belongs to one of several branches stays; so does enough
    to generate something."""
    made, put = course(pattern)
    assert begun.startswith(put)
    if put == begun:
        assert source(made) == rest


@pytest.mark.parametrize(
    ("pattern", "stop", "longest"),
    [
        (r'[0-9]{2}", "row": "[a-z]+', '"', None),
        (r'[0-9]{2}", "row": "(a|b)"\}', '"', None),
        (r'([a-z]|,)+", "row": "[0-9]', '"', None),
        (r'[0-9]"?[0-9]", "row": "x[0-9]', None, 16),  # a quote may come before
        (r'."row"[0-9]', None, 10),  # anything may come before
        (r"[0-9]ab[0-9]", None, 4),  # not worth a request
        (r"[0-9]\.", ".", None),  # at the end nothing need be worth it
        (r"[0-9]", None, 1),
        (r"(yes|no|é)", None, 3),
        (r"[0-9]+", None, None),
        (r"[0-9](?=row)row", None, None),
        (r"[0-9]é[a-z]é", None, 6),
    ],
)
def test_where_the_server_stops(pattern: str, stop: str | None, longest: int | None) -> None:
    """At the first character of a text that is worth it, if that can't come before; else not, and
    the number of bytes bounds the tokens."""
    made, put = course(pattern)
    assert put == ""
    assert (made.stop, made.longest) == (stop, longest)


def test_a_course_from_beginning_to_end() -> None:
    """Each piece is asked for with the rest of the pattern, up to the end, which needs no more."""
    made, put = course(r'\{"tool": "(search|count)", "row": "[0-9]{2}"\}')
    assert '{"tool": "'.startswith(put)
    said = TOKENIZER.encode('count"')
    more = spelled(made.go_on(said, 100))
    assert (source(made) or "").endswith(r'[0-9]{2}"\}')
    assert ', "row": "'.startswith(more)
    assert made.stop == '"'
    end = spelled(made.go_on(TOKENIZER.encode(', "row": "'[len(more) :] + '42"'), 100))
    assert (end, made.rest) == ("}", None)


def test_no_token_may_go_beyond_a_text_that_is_put_in() -> None:
    """Where a token holds the whole text and more, the server would have said more than can be cut
    off: it does not stop there."""
    constraint = Constraint("regex", "[0-9]abc[0-9]")
    for tokens, stop in ((TOKENS, "a"), (Tokens([*BYTES, b"abcabc", b"a" * 9]), None)):
        made = Course(constraint, CHECKER.matcher(constraint), tokens, pays=lambda _: True)
        made.begin(100)
        assert made.stop == stop


def test_a_server_that_does_not_keep_the_pattern_ends_it() -> None:
    """Nothing is put in after a text that the pattern does not have."""
    made, _ = course(r'[0-9]{2}", "row": "[a-z]+')
    assert made.go_on(TOKENIZER.encode('ab"'), 100) == []
    assert made.rest is None


def test_other_constraints_are_left_alone() -> None:
    """Only the rest of a pattern can be said."""
    for constraint in (Constraint("lark", 'start: "a"'), Constraint("regex", "ab", after="x")):
        made = Course(constraint, CHECKER.matcher(constraint), TOKENS, pays=lambda _: True)
        assert made.begin(100) == []
        assert (made.rest, made.stop, made.longest) == (constraint, None, None)


ATOMS = st.sampled_from([
    "a", "b", "abc", '", "x": "', r"\.", r"\}", "[ab]", "[^b]", "(a|b)", "(yes|no)", "b?", "a{2}",
    "(ab)*", "[0-9]{2}", "[a-z]{1,3}", r"\d", " ", "é", "日本", "(?:x|y)", "[.]", ".",
    r"\b", r"\B", "(?<=a)", "(?<!a)", "(?=a)", "(?!b)", "^", "$", "|",
])  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_whatever_a_server_says_the_text_is_the_patterns(data: st.DataObject) -> None:
    """A server that keeps each rest, stops where it is told to and is cut at the bound says, with
    what is put in, the very text that it would have said of the whole pattern."""
    pattern = "".join(data.draw(st.lists(ATOMS, min_size=1, max_size=7), label="atoms"))
    try:
        re.compile(pattern)
        COMPILER.compile(Constraint("regex", pattern))
    except (re.error, ConstraintError):
        assume(False)
    text = data.draw(st.from_regex(pattern, fullmatch=True), label="text")
    assume(COMPILER.matcher(Constraint("regex", pattern)).accepts_prefix(TOKENIZER.encode(text))
           == len(TOKENIZER.encode(text)))  # fmt: skip
    made, said = course(pattern)
    assert text.startswith(said)
    while made.rest is not None:
        left = text[len(said) :]
        assert re.fullmatch(made.rest.source, left)
        tokens = TOKENIZER.encode(left)
        assert made.longest is None or len(tokens) <= made.longest
        if made.stop is None or made.stop not in left:
            said += left
            break
        ends = next(i for i in range(len(tokens)) if made.stop in TOKENIZER.decode(tokens[: i + 1]))
        piece = tokens[: ends + 1]
        said += spelled(piece)
        said += spelled(made.go_on(piece, 100))
        assert text.startswith(said)
    assert said == text
