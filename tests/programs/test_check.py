"""What the linter finds, and what it leaves alone."""

from __future__ import annotations

import pytest

import phloem as ph


def codes(program: ph.Program) -> list[str]:
    return [finding.code for finding in program.check()]


def test_reads_before_any_step() -> None:
    """A variable that no step can have set is an error where it is read."""

    @ph.function
    def program(s):
        if s["x"] == "a":
            s += ph.gen("x")
        return s["x"]

    (finding,) = program.check()
    assert (finding.code, finding.severity) == ("P003", "error")
    assert finding.line == program.function.__code__.co_firstlineno + 2


def test_reads_after_a_step_a_scope_or_set_var() -> None:
    """What a step, a scope, a loop's earlier turn or set_var sets may be read."""

    @ph.function
    def program(s):
        s.set_var("a", 1)
        with s.var_scope("b"):
            s += "x" + ph.gen("c")
        for _ in range(2):
            if s["a"] == s["b"]:
                s += s["d"]
            s += ph.gen("d")
        return s["c"]

    assert codes(program) == []


def test_what_the_compiler_can_not_see_is_not_accused() -> None:
    """A program with an opaque part is not said to read what that part may set."""

    def helper(s):
        s += ph.gen("x")

    @ph.function
    def program(s):
        helper(s)
        return s["x"]

    assert codes(program) == ["P007"]


def test_constraints_that_can_not_fit() -> None:
    """A constraint longer than max_tokens allows is an error before any run."""

    @ph.function
    def program(s):
        s += ph.gen("x", regex="[a-z]{400}", max_tokens=10)
        s += ph.gen("y", regex="[a-z]{4}", max_tokens=10)

    assert codes(program) == ["P004"]


@pytest.mark.parametrize("schema", [{"type": "string", "minLength": 4}, {"enum": ["a"]}])
def test_good_programs_have_no_findings(schema: dict) -> None:
    """A correct program has no findings."""

    @ph.function
    def program(s):
        s += ph.user("q") + ph.assistant(ph.gen("x", json_schema=schema))
        return s["x"]

    assert codes(program) == []
