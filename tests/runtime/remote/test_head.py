"""The literal beginning of a pattern, and what is left of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.grammar.spec import Constraint
from phloem.runtime.sglang.head import head

BYTES = [bytes([byte]) for byte in range(256)]


def split(pattern: str, forced: str) -> tuple[str, str]:
    """The head of a pattern whose grammar forces a text, one token a byte, and the rest."""
    tokens, rest = head(Constraint("regex", pattern), list(forced.encode()), BYTES)
    return bytes(tokens).decode(), rest.source


@pytest.mark.parametrize(
    ("pattern", "forced", "expected"),
    [
        (r'\{"order": "[0-9]{6}"', '{"order": "', ('{"order": "', '[0-9]{6}"')),
        (" [0-9]", " ", (" ", "[0-9]")),
        (r" (yes|no), because", " ", (" ", "(yes|no), because")),
        (r"a\.b\+[x|y]", "a.b+", ("a.b+", "[x|y]")),
        ("é[0-9]", "é", ("é", "[0-9]")),
        ("abc[0-9]", "ab", ("ab", "c[0-9]")),
        ("abc*", "ab", ("ab", "c*")),
        ("abc?d", "ab", ("ab", "c?d")),
        ("abc{2}", "abcc", ("ab", "c{2}")),
        ("abc", "abc", ("ab", "c")),
        (r"ab\d", "ab", ("ab", r"\d")),
        (r"a[]|]b|c", "a", ("", r"a[]|]b|c")),
        (r"a[^]|]b", "a", ("a", "[^]|]b")),
        ("ab|ac", "a", ("", "ab|ac")),
        ("(ab|ac)", "a", ("", "(ab|ac)")),
        ("(?i)ab", "ab", ("", "(?i)ab")),
        ("", "", ("", "")),
    ],
)  # fmt: skip
def test_the_beginning_is_cut_off(pattern: str, forced: str, expected: tuple[str, str]) -> None:
    """What is no literal, may repeat, or belongs to one of several branches stays; so does enough
    to generate something."""
    assert split(pattern, forced) == expected


def test_a_token_that_goes_past_the_literal_stays() -> None:
    """Only whole tokens inside the literal are put in; a character is never cut."""
    constraint = Constraint("regex", "ab[c]d")
    assert head(constraint, [0, 1], [b"ab", b"cd"]) == ([0], Constraint("regex", "[c]d"))
    assert head(constraint, [0], [b"abc"]) == ([], constraint)
    assert head(Constraint("regex", "é[0-9]"), [0xC3], BYTES)[0] == []


def test_other_constraints_are_left_alone() -> None:
    """Only the rest of a pattern can be said."""
    for constraint in (Constraint("lark", 'start: "a"'), Constraint("regex", "ab", after="x")):
        assert head(constraint, [97], BYTES) == ([], constraint)


ATOMS = st.sampled_from([
    "a", "b", r"\.", "[ab]", "[^b]", "(a|b)", "b?", "a{2}", "(ab)*", r"\d", "|", " ",
    r"\b", r"\B", "(?<=a)", "(?<!a)", "^",
])  # fmt: skip


@settings(deadline=None)
@given(st.lists(ATOMS, min_size=1, max_size=6).map("".join), st.text("ab. 0", max_size=6))
def test_head_and_rest_are_the_pattern(pattern: str, text: str) -> None:
    """Whatever the grammar would force, the head followed by the rest is the whole pattern."""
    for size in range(len(text) + 1):
        begun, rest = split(pattern, text[:size])
        if begun:
            assert text.startswith(begun)
            after = text[len(begun) :]
            assert bool(re.fullmatch(pattern, text)) == bool(re.fullmatch(rest, after))
