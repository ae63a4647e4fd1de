"""Plausible mistakes in programs and calls: each is refused by name, with place and remedy."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import phloem as ph
from phloem.errors import (
    BatchFailed,
    CompileError,
    ConfigError,
    ConstraintError,
    DeadlineExceeded,
    PhloemError,
    ProgramError,
    RetrievalError,
    where_of,
)
from phloem.programs.executor import values
from phloem.programs.testing import ScriptedBackend

from .conftest import FakeRetriever


def engine(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(lambda *_: "out", **options)


@ph.function
def asks(s, **arguments):
    s += "Hello"
    s += ph.gen("x", **arguments)
    return s["x"]


@ph.function
def fine(s, n=0):
    s += f"{n}" + ph.gen("x", max_tokens=3)
    return n


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 2.5},
        {"max_tokens": True},
        {"min_tokens": 9, "max_tokens": 5},
        {"top_p": 0},
        {"top_k": 0},
        {"stop": 5},
        {"stop": [""]},
        {"stop_token_ids": "x"},
        {"logprobs": -1},
        {"seed": "x"},
        {"ignore_eos": "yes"},
        {"retries": -1},
        {"retries": "two"},
        {"timeout": "soon"},
        {"timeout": True},
        {"regex": 5},
        {"choices": ["a", ""]},
    ],
    ids=str,
)
def test_arguments_of_a_step_are_checked_before_the_engine(bad: dict[str, Any]) -> None:
    """An argument of another type or out of range names itself and the line, and has a hint."""

    @ph.function
    def program(s):
        s += "Hello" + ph.gen("x", **bad)

    backend = engine()
    with pytest.raises(PhloemError) as caught:
        program.run(backend=backend)
    name = next(iter(bad)).removesuffix("s")
    assert name.removesuffix("_token_id") in caught.value.message
    assert caught.value.hint
    place = where_of(caught.value)
    assert place is not None
    assert place.line == program.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    "bad",
    [
        {"seed": "x"},
        {"deadline": "soon"},
        {"deadline": float("nan")},
        {"token_budget": 1.5},
        {"priority": "high"},
        {"namespace": 3},
        {"step_cache": 5},
        {"backend": "http://bob:secret@host"},
        {"retriever": 3},
    ],
    ids=str,
)
def test_settings_of_a_run_are_checked(bad: dict[str, Any]) -> None:
    """A setting of another type is refused before anything runs, and secrets are not told."""
    with pytest.raises(CompileError, match=next(iter(bad))) as caught:
        fine.run(**{"backend": engine(), **bad})
    assert "secret" not in str(caught.value)


def test_a_misspelt_argument_is_told_the_right_name() -> None:
    """An unknown keyword of a step gets the nearest known one, at check and at run."""

    @ph.function
    def program(s):
        s += "a" + ph.gen("x", max_token=3)

    (finding,) = program.check()
    assert (finding.code, finding.hint) == ("P010", "did you mean max_tokens=?")
    with pytest.raises(CompileError, match="did you mean max_tokens="):
        program.run(backend=engine())


def test_check_finds_arguments_that_can_not_be_taken() -> None:
    """A constant out of range is a finding on its line."""

    @ph.function
    def program(s):
        s += "a" + ph.gen("x", max_tokens=-1)
        s += ph.gen("y", temperature="hot")

    assert [finding.code for finding in program.check()] == ["P010", "P010"]


def in_f_string(s):
    s += f"Q: {ph.gen('x')}"


def as_condition(s):
    s += "a"
    if ph.gen("x") == "yes":
        s += "b"


def as_truth(s):
    s += "a" if ph.select("x", ["a", "b"]) else "b"


def as_text(s):
    s += "a" + str(ph.gen("x"))


def as_statement(s):
    s += "a"
    ph.gen("x")


def role_as_statement(s):
    ph.user("hi")
    s += ph.gen("x")


def as_result(s):
    s += "a"
    return "Answer: " + ph.gen("x")


def state_plus(s):
    s = s + "a"


@pytest.mark.parametrize(
    "mistake",
    [
        in_f_string,
        as_condition,
        as_truth,
        as_text,
        as_statement,
        role_as_statement,
        as_result,
        state_plus,
    ],
)
def test_a_step_that_is_no_value_yet_is_not_taken_for_one(mistake: Any) -> None:
    """A step used as text or value, or never appended, is an error that says what to write."""
    with pytest.raises(CompileError) as caught:
        ph.function(mistake).run(backend=engine())
    assert "s +=" in (caught.value.hint or "") or "append" in (caught.value.hint or "")


def test_check_finds_steps_that_are_never_added() -> None:
    """A gen or a role as a statement of its own is a finding."""
    assert "P011" in [finding.code for finding in ph.function(as_statement).check()]
    assert "P011" in [finding.code for finding in ph.function(role_as_statement).check()]


def test_names_of_steps_are_texts(retriever: FakeRetriever) -> None:
    """A name that is no text is refused at its own place, by every step."""
    for make in (
        lambda: ph.gen(7),
        lambda: ph.select(7, ["a"]),
        lambda: ph.retrieve(7, "query"),
        lambda: ph.quote(7, retriever.hits),
    ):

        @ph.function
        def program(s, make=make):
            s += "text"
            s += make()

        with pytest.raises(CompileError, match="the name of a step is a text, not 7"):
            program.run(backend=ScriptedBackend(), retriever=retriever)


def test_choices_may_come_from_any_iterable() -> None:
    """A generator, the keys of a mapping and a set are choices; nothing is used up before."""

    @ph.function
    def program(s):
        s += ph.select("a", (letter for letter in "ab"))
        s += ph.select("b", {"c": 1, "d": 2}.keys())
        s += ph.gen("c", choices={"e"})
        return s["a"] + s["b"] + s["c"]

    backend = ScriptedBackend(scores={"b": -0.1, "d": -0.1})
    assert program.run(backend=backend).value == "bde"


@pytest.mark.parametrize(
    "bad",
    [
        {"regex": "a|b"},
        {"type": int},
        {"n": 2},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"choices_method": "likelihood"},
    ],
    ids=str,
)
def test_choices_refuse_what_they_would_not_heed(bad: dict[str, Any]) -> None:
    """A choice with a constraint, several samples, or an unknown rule is refused with its place."""

    @ph.function
    def chooses(s):
        s += ph.gen("x", choices=["a", "b"], **bad)

    with pytest.raises(CompileError, match=next(iter(bad))) as caught:
        chooses.run(backend=engine())
    place = where_of(caught.value)
    assert place is not None
    assert place.line == chooses.function.__code__.co_firstlineno + 2


def test_a_state_says_that_it_can_not_be_pickled() -> None:
    """Neither a finished nor a running state is pickled or copied; the error names the way out."""
    state = fine.run(backend=engine())
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ProgramError, match="pickled or copied") as caught:
            way(state)
        assert ".value" in str(caught.value.hint)


def test_value_style_refuses_keywords_that_nothing_uses() -> None:
    """A keyword that is neither an argument nor a variable of the prompt is refused."""

    @ph.function(prompts={"ask": "Capital of {{ country }}?", "system": "Be {{ tone }}."})
    def program(country: str, **wrong):
        return ph.gen("ask", tone="brief", max_tokens=3, **wrong)

    assert program.run(country="France", backend=engine()).value == "out"
    with pytest.raises(CompileError, match="max_token"):
        program.run(country="France", max_token=3, backend=engine())


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration("empty"),
        GeneratorExit(),
        BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()]),
    ],
)
def test_no_program_can_end_the_others(error: BaseException) -> None:
    """An exit, an interrupt, an empty next() or what else is no `Exception` in a program is its
    own error, at its place."""

    @ph.function
    def program(s):
        s += "a"
        raise error

    with pytest.raises(ProgramError) as caught:
        program.run(backend=engine())
    assert caught.value.__cause__ is error
    place = where_of(caught.value)
    assert place is not None
    assert place.line == program.function.__code__.co_firstlineno + 3
    states = program.run_batch([{}, {}], backend=engine())
    assert [type(state.error()) for state in states] == [ProgramError, ProgramError]
    assert fine.run(backend=engine()).value == 0


def test_a_tool_can_not_end_the_process() -> None:
    """An exit in a tool is an error of the run, on the tool's line."""

    @ph.tool
    def leave() -> None:
        sys.exit(4)

    @ph.function
    def program(s):
        leave()

    with pytest.raises(ProgramError, match=r"SystemExit\(4\)"):
        program.run(backend=engine())
    assert fine.run(backend=engine()).value == 0


def test_an_exit_in_a_task_of_a_program_leaves_the_loop_running() -> None:
    """A task that a program starts may exit without ending other programs."""

    @ph.function
    async def program(s):
        async def leave() -> None:
            sys.exit(5)

        await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)

    program.run(backend=engine())
    assert fine.run(backend=engine()).value == 0


def test_a_cancelled_task_of_a_program_is_no_cancelled_run() -> None:
    """A program that awaits what it has cancelled fails; its caller is not cancelled."""

    @ph.function
    async def program(s):
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(ProgramError, match="was cancelled"):
        program.run(backend=engine())
    (state,) = program.run_batch([{}], backend=engine())
    assert isinstance(state.error(), ProgramError)


def test_a_missed_deadline_names_the_step() -> None:
    """The error of the run's deadline has the line of the step that was being done."""

    @ph.function
    def program(s):
        s += "a" + ph.gen("slow")

    with pytest.raises(DeadlineExceeded) as caught:
        program.run(deadline=2.0, backend=engine(gate=lambda: asyncio.sleep(30)))
    place = where_of(caught.value)
    assert place is not None
    assert place.node == "gen:slow"


def test_rows_that_end_early_lose_nothing() -> None:
    """An iterator of rows that fails: the states before are yielded, or attached to the error."""

    def rows():
        yield {"n": 1}
        yield 5
        yield {"n": 2}
        raise OSError("the file broke")

    states = fine.run_batch(rows(), generator_style=True, backend=engine())
    found = [state.error() or state.value for state in itertools.islice(states, 3)]
    assert [found[0], type(found[1]), found[2]] == [1, CompileError, 2]
    with pytest.raises(OSError, match="broke"):
        next(states)
    with pytest.raises(BatchFailed, match="after 3 rows: OSError") as caught:
        fine.run_batch(rows(), backend=engine())
    assert len(caught.value.results) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"order": "random"},
        {"on_error": "ignore"},
        {"num_threads": "many"},
        {"generator_style": True, "on_error": "raise"},
        {"batch": None},
        {"batch": {"n": 1}},
        {"batch": "text"},
        {"batch": [{"n": 1}, None]},
    ],
    ids=str,
)
def test_options_of_a_batch_are_checked(bad: dict[str, Any]) -> None:
    """An unknown option, or a batch that is none, is refused before any row runs."""
    with pytest.raises(CompileError):
        fine.run_batch(**{"batch": [{"n": 1}], "backend": engine(), **bad})


def test_results_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """A file that is no results file is refused and keeps every byte."""
    for index, text in enumerate(['{"my": "data"}', "a,b\n1,2\n", '{"index": 1}\n', "[1]\n"]):
        file = tmp_path / str(index)
        file.write_text(text)
        with pytest.raises(ConfigError, match="something else"):
            fine.run_batch([{"n": 1}], results_file=file, backend=engine())
        assert file.read_text() == text
    with pytest.raises(ConfigError, match="can't be used"):
        fine.run_batch([{"n": 1}], results_file=tmp_path / "no" / "file", backend=engine())


def test_results_are_those_of_the_program_as_it_is(tmp_path: Path) -> None:
    """A changed program, prompt or sampling argument runs the rows of a results file again."""

    def made(prompt: str) -> ph.Program:
        @ph.function
        def program(s, n):
            s += prompt + ph.gen("x", max_tokens=3)

        return program

    asked: list[str] = []
    backend = ScriptedBackend(lambda *_: asked.append("step") or "out")
    steps = []
    for prompt, options in [("a", {}), ("a", {}), ("b", {}), ("b", {"temperature": 0})]:
        asked.clear()
        made(prompt).run_batch([{"n": 1}], results_file=tmp_path / "f", backend=backend, **options)
        steps.append(len(asked))
    assert steps == [1, 0, 1, 1]


def test_retrieved_things_are_hits() -> None:
    """A retriever that answers with something else, and texts for passages, are refused."""

    class Odd:
        async def search(self, query):
            return [1]

    @ph.function
    def searches(s):
        ph.retrieve("q")

    @ph.function
    def shows(s):
        s += ph.passages(["text"])

    with pytest.raises(RetrievalError, match="Odd answered with list"):
        searches.run(retriever=Odd(), backend=engine())
    with pytest.raises(CompileError, match="hits of a retrieval"):
        shows.run(backend=engine())


def test_bad_regex_says_where() -> None:
    """A pattern that does not parse names the place in it and the line of the step."""
    with pytest.raises(ConstraintError, match="position 1"):
        asks.run(regex="a[", backend=engine())


@pytest.mark.parametrize(
    "part",
    [
        lambda s, half: s.__iadd__(half),
        lambda s, half: s.__iadd__(ph.select("x", ["a", half])),
        lambda s, half: s.__iadd__(ph.gen("x", stop=half)),
        lambda s, half: ph.retrieve("d", half),
    ],
)
def test_half_a_surrogate_pair_is_refused(part: Any) -> None:
    """Text that no tokenizer takes is refused by name wherever a program puts it."""

    @ph.function
    def program(s):
        part(s, "a\ud800")

    class Empty:
        async def search(self, query):
            raise AssertionError("asked")

    with pytest.raises(CompileError, match="surrogate pair"):
        program.run(backend=engine(), retriever=Empty())


def test_values_that_json_lacks_are_shown_and_recorded() -> None:
    """Infinities and half characters are shown as text; a record keeps the number exactly."""
    shown = values.show({"a": float("nan"), "b": [float("-inf")], "c": "x\ud800é"})
    assert shown == {"a": "nan", "b": ["-inf"], "c": "x\\ud800é"}
    kept = json.loads(json.dumps(values.encode([float("inf"), 1.5]), allow_nan=False))
    assert values.decode(kept) == [float("inf"), 1.5]
