"""Regex constraints: Python's full match, or a refusal with a position."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.errors import ConstraintError
from phloem.grammar.lowering import regex_language
from phloem.grammar.sample import samples
from phloem.grammar.schema.strings import holds, is_empty
from phloem.grammar.second_engine import in_common_subset, index_accepts
from phloem.grammar.spec import Constraint
from phloem.grammar.testing import accepts, accepts_json

OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[🦊]{3}", ["🦊🦊🦊"], ["🦊🦊", "😀😀😀"]),
        ("[🌀-🌟]{2}", ["🌀🌟"], ["🌀", "🦊🦊"]),
        ("[а-я]{4}", ["вода"], ["вод", "Вода"]),  # noqa: RUF001
        ("[一-龥]{2}", ["上海"], ["上", "ab"]),
        (r'\["(苹果|香蕉)"\]', ['["苹果"]'], ['["苹"]', "苹果"]),
        (rf"{OCTET}(\.{OCTET}){{3}}", ["8.8.8.8", "255.0.10.1"], ["1.1.1.1111", "256.1.1.1"]),
        ("(?!aaa)a{2}[ab]", ["aab"], ["aaa", "abb"]),
        ("foo(?=bar)bar", ["foobar"], ["foo", "foobaz"]),
        ("(?<!x)y", ["y"], ["xy"]),
        (r"cat\b dog", ["cat dog"], ["catdog"]),
        (r"^(?!.*--)[a-z-]+(?<!-)$", ["a-b"], ["a--b", "ab-"]),
        ("(^a|b)c$", ["ac", "bc"], ["c"]),
        ("a^b", [], ["ab", "a^b"]),
        ("(?i)straSSe/1", ["STRASSE/1", "strasse/1"], ["straße/1"]),
        ("(?i)élan", ["élan", "ÉLAN"], ["elan"]),
        ("(?i)[à-ý]k", ["Àk", "ýK", "\u00e9\u212a"], ["ak"]),
        ("(?i)[^k]", ["s", "é"], ["k", "K", "\u212a"]),
        ("(?i:s)S", ["sS", "SS", "\u017fS"], ["ss"]),
        (r"a?\B-?", ["-"], ["", "a", "a-"]),
        ("a|ab", ["a", "ab"], ["b", ""]),
        ("a*", ["", "a", "aaaa"], ["b"]),
        (r"[^\W_]+\s?", ["é1 ", "x"], ["_", " "]),
        ("[]a]x{,2}", ["]", "axx"], ["xxx"]),
        ("a{b}", ["a{b}"], ["ab"]),
        (r"a$\n?", ["a", "a\n"], ["a\n\n"]),
        (r"(?!foo$)foo\n?|b", ["b"], ["foo", "foo\n"]),
        (r"(?:x|y$)\s*", ["x \n", "y", "y\n"], ["y ", "y\n\n"]),
        (r"(?m)^a$\n^b$", ["a\nb"], ["ab", "a\n\nb"]),
        (r"(?m)a(?:$|b)c?.?", ["a", "abc"], ["ac", "a\n"]),
        (r"(?a)\w\d(?:\s)?[^\w]?", ["a1", "a1 é"], ["é1", "a\u0661", "a1\x1ca"]),
        (r"(?ai)k(?a:[^\d])", ["Kx", "k\u0661"], ["\u212ax", "k1"]),
        (r".*\bfoo\b.*", ["foo", "a foo.", "-foo"], ["xfoo", "fooo", ""]),
        (r".*\b\d+\b.*", ["12", "a 12"], ["a12"]),
        (r"(?:(?!ab).)*", ["", "ba", "aa"], ["ab", "xaby", "\n"]),
        (r"^((?!foo|ba+r).)*$", ["fo", "br"], ["xfoo", "baar", "bar"]),
        (r'"(?:(?!")[^\\])*"', ['"a"', '""'], ['"', '"a"b"']),
        (r"(?:(?!b)[a-c])+(?=c)c", ["ac", "cc"], ["c", "abc"]),
        ("a{,}b{٣}", ["b{٣}", "aab{٣}"], ["a{,}b{٣}", "bbb", "abbb"]),
        ("a(?#x)*(?#y)b", ["b", "aab"], ["a", "ba"]),
        ("(?#x)(?i)(?#y)(?s)a.", ["A\n"], ["ab\n"]),
        (r"(?a)\w(?u:\w)", ["aé"], ["éa"]),
        (r"\ud83e\udd8a|a", ["a"], ["🦊"]),
        (r"a\b[\w-]b?", ["a-", "a-b"], ["aa", "a٣"]),
        (r"(?:(?!b*)a)*|(?:(?!$)c)*", ["", "cc"], ["a", "ca"]),
        (r"b?$^(?!a)c?", [""], ["a", "b", "c"]),
        (r"(?P<year>\d{4})(?#comment)-\x41\u0042", ["2024-AB", "٢٠٢٤-AB"], ["2024-ab"]),
    ],
)
def test_a_regex_accepts_what_python_matches_in_full(compiler, pattern, yes, no):
    """Token by token, a text is accepted exactly if `re.fullmatch` accepts it."""
    constraint = Constraint("regex", pattern)
    for text in [*yes, *no]:
        expected = re.fullmatch(pattern, text) is not None
        assert expected is (text in yes)
        assert accepts(constraint, text, tokenizer=compiler) is expected, text


@pytest.mark.parametrize(
    ("pattern", "position", "word"),
    [
        ("a[b", 1, "class"),
        ("(ab", 0, "group"),
        ("(?P<1>a)", 0, "name '1'"),
        ("a(?P<a>x)(?P<a>y)", 13, "redefinition"),
        ("(?P<a$b>x)", 4, "group name"),
        ("a*(?#x)*", 7, "repeat"),
        ("(?)a", 1, "extension"),
        ("(?-i)a", 4, "missing :"),
        ("(?i-i:a)", 5, "flag"),
        ("(?au:a)", 4, "flags"),
        ("a|(?i)b", 2, "flags"),
        (r"[\w-a]", 1, "range"),
        ("(?<=a*)b", 8, "fixed-width"),
        ("*a", 0, "repeat"),
        ("a{3,1}", 1, "repetition"),
        ("ab)", 2, "parenthesis"),
        ("[z-a]", 0, "range"),
        (r"(a)\1", 3, "backreference"),
        ("(?P<x>a)(?P=x)", 8, "backreference"),
        ("(?>ab)c", 0, "atomic"),
        ("a++b", 2, "possessive"),
        (r"((?!ab)a)*b", 1, "repetition"),
        (r"(?:a\b ?)+", 4, "repetition"),
        ("(?x)a b", 0, "group"),
        (r"\bab\Z\q", 6, "escape"),
        ("(" * 300 + "a" + ")" * 300, 101, "nested"),
    ],
)
def test_what_cant_be_enforced_is_refused_with_its_position(build, pattern, position, word):
    """A pattern that does not parse, or is no regular language, names where it goes wrong."""
    with pytest.raises(ConstraintError, match=word) as caught:
        build(regex=pattern)
    assert caught.value.details["position"] == position


@pytest.mark.parametrize("pattern", ["a{1000000}", "(a{1,1000}){1,1000}", "((a{9}){999}){999}"])
def test_exploding_counts_are_refused(build, pattern):
    """Counted repetitions that stand for millions of characters are refused at once."""
    with pytest.raises(ConstraintError, match="250,000"):
        build(regex=pattern)


def test_an_empty_language_is_refused(build):
    """A pattern that no text matches is an error before anything is generated."""
    with pytest.raises(ConstraintError, match="no text"):
        build(regex="a^b")


@pytest.mark.parametrize("pattern", ["a{1,129}", "[ab]*a[ab]{13}", "(x+x+)+y", "(a|a?){40}"])
def test_awkward_automata_still_work(compiler, build, draw, pattern):
    """Patterns whose automata trouble other engines give texts that match."""
    for seed in range(5):
        text = draw(compiler, build(regex=pattern), seed, limit=150)
        assert re.fullmatch(pattern.replace("(x+x+)+y", "x{2,}y"), text)


# Pieces of any kind, so that most of their sequences are no patterns at all.
PIECES = [
    "a", "B", "é", "k", "1", " ", "_", "-", "]", "[", "^", "$", ".", "|", "(", ")", "(?:", "*",
    "+", "?", "{2}", "{,2}", "{,}", "{", r"\d", r"\W", r"\S", r"\b", r"\B", r"\A", r"\Z", r"\x41",
    "[a-c]", "[^a]", r"[\w-]", r"[^\W_]", "[]a]", "[a-", "-z]", "(?i)", "(?s)", "(?a)", "(?m)",
    "(?i:", "(?-i:", "(?u:", "(?#c)", "(?=", "(?!", "(?<=", "(?<!", "(?P<n>", "(?P=n)", "*?",
    "\\", '"', "\n", "\u212a",
]  # fmt: skip


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
    st.lists(st.text("abAB1k-é\n"), max_size=4),
)
@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
def test_no_pattern_is_read_otherwise_than_python_reads_it(pattern, texts):
    """What `re` refuses is refused; what is taken matches the texts that `re` matches."""
    try:
        theirs = re.compile(pattern)
    except re.error:
        with pytest.raises(ConstraintError):
            regex_language(pattern)
        return
    try:
        ours = regex_language(pattern)
    except ConstraintError:
        return  # What no engine of ours can hold; the cases above name it.
    for text in texts:
        assert holds(ours, text) is (theirs.fullmatch(text) is not None), text


def _patterns():
    """Random patterns of the common syntax, with anchors and lookaround where they may stand."""
    leaf = st.sampled_from(
        [
            "a",
            "b",
            "ab",
            "[a-c]",
            "[^a]",
            ".",
            r"\d",
            r"\w",
            r"\s",
            r"\.",
            "é",
            '"',
            r"\\",
            "[^\\W_]",
        ]
    )

    def extend(inner):
        return st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
        )

    body = st.recursive(leaf, extend, max_leaves=6)
    edges = st.sampled_from(
        [
            ("", ""),
            ("^", "$"),
            ("(?!ab)", ""),
            ("", "(?<!b)"),
            ("(?=.*a)", ""),
            (r"\b", ""),
            ("(?!a?$)", "\n?"),
            (r".*\bab\b", ""),
            ("", "(?:(?!ab).)*"),
            ("(?:(?!b)[^d])+", ""),
            ("(?m)^", "$.?"),
        ]
    )
    return st.tuples(edges, body).map(lambda parts: parts[0][0] + parts[1] + parts[0][1])


TEXTS = st.text(alphabet='abcd01 .é"\\_\n', max_size=6)


@settings(max_examples=60, deadline=None)
@given(_patterns(), st.lists(TEXTS, max_size=6))
def test_random_patterns_agree_with_python(compiler, pattern, texts):
    """For random patterns, acceptance of random texts is Python's, and samples match."""
    constraint = Constraint("regex", pattern)
    for text in texts:
        expected = re.fullmatch(pattern, text) is not None
        assert accepts(constraint, text, tokenizer=compiler) is expected
    if not is_empty(regex_language(pattern)):
        for text in samples(constraint, 3, soft_limit=40):
            assert re.fullmatch(pattern, text)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(_patterns(), st.lists(TEXTS, max_size=6))
def test_many_random_patterns_agree_with_python(compiler, pattern, texts):
    """The same at full count."""
    constraint = Constraint("regex", pattern)
    for text in texts:
        expected = re.fullmatch(pattern, text) is not None
        assert accepts(constraint, text, tokenizer=compiler) is expected


@settings(max_examples=40, deadline=None)
@given(_patterns(), st.lists(TEXTS, max_size=5))
def test_the_second_engine_agrees_where_it_is_right(compiler, pattern, texts):
    """On the named subset, outlines-core and llguidance accept the same texts."""
    if not in_common_subset(pattern):
        return
    for text in texts:
        if text.isascii():
            ours = accepts(Constraint("regex", pattern), text, tokenizer=compiler)
            assert ours is index_accepts(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    "pattern", ["[a-c]{2}d+", "(yes|no), because [b-d]{1,3}", "x[0-9]*y", "(ab|ba|c)*z"]
)
def test_the_second_engine_agrees_on_plain_patterns(compiler, pattern):
    """The subset is not empty: both engines accept the samples and refuse cut ones."""
    assert in_common_subset(pattern)
    constraint = Constraint("regex", pattern)
    for text in samples(constraint, 4):
        for cut in (text, text[:-1], text + "q"):
            ours = accepts(constraint, cut, tokenizer=compiler)
            assert ours is index_accepts(pattern, cut)


@pytest.mark.parametrize("pattern", ["a|ab", "(yes|yes please)", "a*a", "é"])
def test_the_subset_leaves_out_what_the_second_engine_gets_wrong(pattern):
    """Alternatives that begin alike, ambiguous repetitions and other scripts are not compared."""
    assert not in_common_subset(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[^\\d]", ["a", "1a"], ["1", "\u0661"]),
        ("^(?!\\d)", ["a"], ["1", "\u0661"]),
        ("^[^\\w]$", ["-"], ["a", "é"]),
        ("^[^\\s]$", ["a"], [" ", "\x1c", "\ufeff"]),
        ("^[^\\D]$", ["1"], ["a", "\u0661"]),
        ("\\bfoo\\b", ["foo", "a foo-"], ["food", "xfoo"]),
        ("^((?!foo).)*$", ["fo o"], ["a foo"]),
        ("(?P<year>^\\d{4})", ["2024"], ["24"]),
        ("^a\\b[\\w-]", ["a-"], ["aa"]),
    ],
)  # fmt: skip
def test_a_schemas_pattern_takes_what_every_reading_takes(compiler, pattern, yes, no):
    """Where ECMA-262 and Python read a class differently, a text fits only if it fits both."""
    for text in yes:
        assert re.search(pattern, text)
        assert accepts_json({"type": "string", "pattern": pattern}, text, tokenizer=compiler)
    for text in no:
        assert not accepts_json({"type": "string", "pattern": pattern}, text, tokenizer=compiler)


@pytest.mark.parametrize("pattern", [r"^\u{12", r"\u{}", r"\u{110000}", "a{,}", "(?#x)a", "(?<n"])
def test_what_a_schemas_dialect_does_not_have_is_refused(build, pattern):
    """An escape without its end, and what only Python writes, is no ECMA-262."""
    with pytest.raises(ConstraintError, match="regex"):
        build(schema={"type": "string", "pattern": pattern})
