"""The oracle: random programs, compiled and run directly, have equal event traces."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .test_semantics import load, outcome

NAMES = st.sampled_from(["p", "q", "r"])
STEPS = st.sampled_from(
    ["ph.gen('a')", "ph.gen('b', max_tokens=3)", "ph.gen('c', choices=['u', 'v'])", "helper(v)"]
)
PLAIN = st.one_of(
    NAMES, st.sampled_from(["1", "'x'", "note(2)", "len(log)", "[note(i) for i in range(2)]"])
)


def expressions(depth: int = 2) -> st.SearchStrategy[str]:
    if depth == 0:
        return st.one_of(PLAIN, STEPS)
    below = expressions(depth - 1)
    return st.one_of(
        PLAIN,
        STEPS,
        st.builds("(str({}) + str({}))".format, below, below),
        st.builds("({} or {})".format, below, below),
        st.builds("({} and {})".format, below, below),
        st.builds("(not {})".format, below),
        st.builds("({} if {} else {})".format, below, below, below),
        st.builds("f'{{{}}}-{{{}!r:>4}}'".format, NAMES, NAMES),
        st.builds("[{}, *[{}], {}]".format, below, below, below),
        st.builds("note({}, k={})".format, below, below),
        st.builds("(str({}) < str({}) <= str({}))".format, below, below, below),
        st.builds("({} := {})".format, NAMES, below),
        st.builds("(lambda: {})()".format, below),
    )


def indent(block: str) -> str:
    return "\n".join("    " + line for line in block.split("\n"))


def blocks(depth: int, loop: bool) -> st.SearchStrategy[str]:
    leaves = [
        st.builds("{} = {}".format, NAMES, expressions()),
        st.builds("{}, {} = {}, {}".format, NAMES, NAMES, expressions(1), expressions(1)),
        st.builds("{} = str({}) + str({})".format, NAMES, NAMES, expressions(1)),
        st.builds("note({})".format, expressions()),
        st.builds("del {}".format, NAMES),
        st.builds("return {}".format, expressions(1)),
        st.builds("raise ValueError({})".format, expressions(1)),
    ]
    if loop:
        leaves += [st.just("break"), st.just("continue")]
    if depth == 0:
        return st.one_of(leaves)
    body = st.lists(blocks(depth - 1, loop), min_size=1, max_size=3).map("\n".join).map(indent)
    inner = st.lists(blocks(depth - 1, True), min_size=1, max_size=3).map("\n".join).map(indent)
    return st.one_of(
        *leaves,
        st.builds("if {}:\n{}\nelse:\n{}".format, expressions(1), body, body),
        st.builds("for {} in range(2):\n{}\nelse:\n{}".format, NAMES, inner, body),
        st.builds("while len(log) < 6 and note({}):\n{}".format, expressions(1), inner),
        st.builds("try:\n{}\nexcept ValueError:\n{}\nfinally:\n{}".format, body, body, body),
        st.builds("with quiet:\n{}".format, body),
        st.builds("def f():\n    nonlocal p\n    p = {}\nf()".format, expressions(1)),
    )


PROGRAMS = st.lists(blocks(2, False), min_size=1, max_size=5).map("\n".join)
HEAD = """
def program(v, log):
    import contextlib
    quiet = contextlib.suppress(KeyError)
    def note(*x, **k):
        if len(log) > 30:
            raise ValueError("enough")
        log.append((x, k))
        return len(log) % 3
    def helper(x):
        return ph.gen("d", fresh=note(x) == 1)
    p, q = "p", 0
"""


def same(source: str) -> None:
    function = load(HEAD + indent(source))
    assert outcome(function, opaque=False) == outcome(function, opaque=True)


COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}


@settings(max_examples=80, derandomize=True, **COMMON)
@given(PROGRAMS)
def test_compiled_and_direct_traces_are_equal(source: str) -> None:
    """A random program does the same effects in the same order, compiled or not."""
    same(source)


@pytest.mark.slow
@settings(max_examples=3000, **COMMON)
@given(st.lists(blocks(3, False), min_size=1, max_size=7).map("\n".join))
def test_larger_programs(source: str) -> None:
    """The same for many more and deeper programs."""
    same(source)
