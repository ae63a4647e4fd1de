"""The oracle: random programs, compiled and run directly, have equal event traces."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings
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


def same(source: str, head: str = HEAD) -> None:
    try:
        function = load(head + indent(source))
    except SyntaxError:  # a star where none may be, two names for one thing
        reject()
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


def more_expressions(depth: int = 2) -> st.SearchStrategy[str]:
    """Those and Python's other displays, comprehensions and calls."""
    plain = expressions(depth)
    if depth == 0:
        return plain
    below = more_expressions(depth - 1)
    return st.one_of(
        plain,
        st.builds("[{} for {} in str({})[:2]]".format, below, NAMES, below),
        st.builds("[{} for _ in range(2) if {}]".format, below, below),
        st.builds("list({} for {} in [{}, {}])".format, below, NAMES, below, below),
        st.builds("{{str({}): {}, 'k': {}}}".format, below, below, below),
        st.builds("{{str({}): {} for {} in [1, {}]}}".format, below, below, NAMES, below),
        st.builds("(lambda w={}: [w, {}])()".format, below, below),
        st.builds("sorted([2, 1], key=lambda i: str({}))".format, below),
        st.builds("f'{{{}}}|{{{}!s:>9}}'".format, below, below),
        st.builds("str({})[len(str({})) - 2:]".format, below, below),
        st.builds("note(*[{}, {}], **{{'z': {}}})".format, below, below, below),
        st.builds("str({}).replace(str({}), str({}))".format, below, below, below),
        st.builds("({} in [{}, {}])".format, below, below, below),
        st.builds("[i for i in [{}] if ({} := {})]".format, below, NAMES, below),
        st.builds("list(each({}, {}))".format, below, below),
    )


def more_leaves() -> st.SearchStrategy[str]:
    some, few = more_expressions(2), more_expressions(1)
    return st.one_of(
        st.builds("{}: str = {}".format, NAMES, some),
        st.builds("d[str({})] = {}".format, few, few),
        st.builds("d['n'] = {} = [{}, {}]".format, NAMES, few, few),
        st.builds("d['n'] += [{}]".format, few),
        st.builds("o.x += str({})".format, few),
        st.builds("{}, *{} = [{}, {}, {}]".format, NAMES, NAMES, few, few, few),
        st.builds("assert {}, str({})".format, few, few),
        st.builds("{} = o.m({}) + o.x".format, NAMES, few),
        st.builds("del d[str({})]".format, few),
        st.builds("class A:\n    x = {}\n    y = [x, {}]\n{} = A.y".format, few, few, NAMES),
        st.builds(
            "def f(x={}, *y, z={}):\n    return [x, {}, z]\n{} = f()".format, few, few, few, NAMES
        ),
        st.builds("def f():\n    global G\n    G = str({})\n{} = f()".format, few, NAMES),
    )


def more_blocks(depth: int, loop: bool) -> st.SearchStrategy[str]:
    """Statements of all kinds that hold others."""
    few = more_expressions(1)
    simple = st.one_of(blocks(depth, loop), more_leaves())
    if depth == 0:
        return simple
    inside, looped = more_blocks(depth - 1, loop), more_blocks(depth - 1, True)
    body, inner = (
        st.lists(found, min_size=1, max_size=3).map("\n".join).map(indent)
        for found in (inside, looped)
    )
    arm = body.map(indent)
    arms = "    case str() if {}:\n{}\n    case [p, *_] | {{'k': p}}:\n{}\n    case _:\n{}"
    return st.one_of(
        simple,
        st.builds(("match {}:\n" + arms).format, few, few, arm, arm, arm),
        st.builds(
            "try:\n{}\nexcept (ValueError, KeyError) as q:\n{}\nelse:\n{}\nfinally:\n"
            "    note({})".format,
            *(body, body, body, few),
        ),
        st.builds("with around({}) as {}:\n{}".format, few, NAMES, body),
        st.builds(
            "for {}, d['i'] in [(1, 2), (3, {})]:\n{}\nelse:\n{}".format, NAMES, few, inner, body
        ),
        st.builds("for {} in each({}, {}):\n{}".format, NAMES, few, few, inner),
        st.builds("def f():\n    nonlocal p, q\n{}\n{} = f()".format, body, NAMES),
        st.builds("if {}:\n{}\nelif {}:\n{}".format, few, body, few, body),
    )


MORE_PROGRAMS = st.lists(more_blocks(2, False), min_size=1, max_size=5).map("\n".join)
MORE_HEAD = """
import contextlib
G = "g"
class O:
    x = "x"
    def m(self, a):
        return str(a)
def program(v, log):
    quiet, d, o = contextlib.suppress(KeyError), {"n": []}, O()
    def note(*x, **k):
        if len(log) > 30:
            raise ValueError("enough")
        log.append((repr(x), repr(k)))
        return len(log) % 3
    def helper(x):
        return ph.gen("d", fresh=note(x) == 1)
    def each(*xs):
        yield from xs
    @contextlib.contextmanager
    def around(x):
        log.append("in")
        try:
            yield x
        finally:
            log.append("out")
    p, q = "p", 0
"""


@settings(max_examples=60, derandomize=True, **COMMON)
@given(MORE_PROGRAMS)
def test_more_of_python(source: str) -> None:
    """The same for comprehensions, displays, classes, generators, `match`, `try` and the rest."""
    same(source, MORE_HEAD)


STATE_LEAVES = st.one_of(
    st.builds("s += {}".format, st.sampled_from(["'text'", "p", "str(q)", "ph.gen('a')"])),
    st.builds("s += 'x' + ph.gen('{}') + str({}) + ph.gen('b')".format, NAMES, NAMES),
    st.builds(
        "s += [str({}), ph.gen('c', choices=['u', 'v']), note(1) and 'y' or '']".format, NAMES
    ),
    st.builds("s += ph.gen('a') if note({}) else 'z'".format, NAMES),
    st.builds("s += ph.user(str({}) + ph.gen('a'))".format, NAMES),
    st.builds("{} = s['{}']".format, NAMES, st.sampled_from(["a", "b", "p", "nope"])),
    st.builds("forks = s.fork({})".format, st.integers(0, 3)),
    st.just("forks += lambda i: str(i) + ph.gen('f')"),
    st.builds("forks[{}] += 'only' + ph.gen('g')".format, st.integers(0, 2)),
    st.builds(
        "forks.join({!r})".format, st.sampled_from(["gather_variable", "concate_and_append"])
    ),
    st.just("helper(s)"),
    st.builds("s.set_var('{}', {})".format, NAMES, NAMES),
    st.builds("{} = [note(i) for i in range(2)]".format, NAMES),
    st.just("return s['a']"),
    st.just("raise ValueError(p)"),
)


def state_blocks(depth: int, loop: bool) -> st.SearchStrategy[str]:
    leaves = (
        st.one_of(STATE_LEAVES, st.sampled_from(["break", "continue"])) if loop else STATE_LEAVES
    )
    if depth == 0:
        return leaves
    body = st.lists(state_blocks(depth - 1, loop), min_size=1, max_size=3)
    inner = st.lists(state_blocks(depth - 1, True), min_size=1, max_size=3)
    block, looped = (found.map("\n".join).map(indent) for found in (body, inner))
    return st.one_of(
        leaves,
        st.builds("with s.user():\n{}".format, block),
        st.builds("with s.var_scope('{}'):\n{}".format, NAMES, block),
        st.builds("with s.copy() as t:\n    t += 'c' + ph.gen('t')\n{}".format, block),
        st.builds("if note({}):\n{}\nelse:\n{}".format, NAMES, block, block),
        st.builds("for {} in range(2):\n{}".format, NAMES, looped),
        st.builds("try:\n{}\nexcept (KeyError, ph.errors.ProgramError):\n{}".format, block, block),
    )


STATE_HEAD = """
def program(s, v, log):
    def note(*x, **k):
        if len(log) > 30:
            raise ValueError("enough")
        log.append((x, k))
        return len(log) % 3
    def helper(x):
        x += "h" + ph.gen("h")
    p, q = "p", 0
    forks = s.fork(1)
"""


@settings(max_examples=80, derandomize=True, **COMMON)
@given(st.lists(state_blocks(2, False), min_size=1, max_size=6).map("\n".join))
def test_state_style_traces_are_equal(source: str) -> None:
    """The same for state style: additions, roles, scopes, forks, helpers that take the state."""
    same(source, STATE_HEAD)


@pytest.mark.slow
@settings(max_examples=3000, **COMMON)
@given(st.lists(blocks(3, False), min_size=1, max_size=7).map("\n".join))
def test_larger_programs(source: str) -> None:
    """The same for many more and deeper programs."""
    same(source)


@pytest.mark.slow
@settings(max_examples=2000, **COMMON)
@given(st.lists(more_blocks(3, False), min_size=1, max_size=6).map("\n".join))
def test_larger_programs_of_more_of_python(source: str) -> None:
    """The same for many more and deeper ones."""
    same(source, MORE_HEAD)


@pytest.mark.slow
@settings(max_examples=2000, **COMMON)
@given(st.lists(state_blocks(3, False), min_size=1, max_size=8).map("\n".join))
def test_larger_state_programs(source: str) -> None:
    """The same for many more and deeper programs in state style."""
    same(source, STATE_HEAD)
