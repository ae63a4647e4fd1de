"""Batches: order, failures, memory, results files, many runs at once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import phloem as ph
from phloem.errors import BatchFailed, CompileError
from phloem.programs.testing import ScriptedBackend


@ph.function
def program(s, n):
    s += f"{n}:" + ph.gen("x", max_tokens=9)
    if n == 13:
        raise ValueError("bad luck")
    return n * 2


def engine() -> ScriptedBackend:
    return ScriptedBackend(lambda prompt, *_: prompt.upper())


ROWS = [{"n": n} for n in (10, 13, 20)]


@pytest.mark.parametrize("threads", [1, 3, "auto"])
def test_failures_stay_in_their_slot(threads) -> None:
    """Results keep order and length, and a failed row holds its own exception (fk-02)."""
    for _ in range(2):
        states = program.run_batch(ROWS, backend=engine(), num_threads=threads)
        assert [type(state.error()).__name__ for state in states] == [
            *("NoneType", "ValueError", "NoneType")
        ]
        assert (states[0].value, states[2].value) == (20, 40)
        assert str(states[1].error()) == "bad luck"
        assert states[1].error().__traceback__ is not None
        assert states[1]["x"] == "13:"
        with pytest.raises(ValueError, match="bad luck"):
            states[1].value  # noqa: B018 - the read is the point


def test_bad_rows_fail_alone() -> None:
    """A row with wrong arguments or a bad regex is that row's error."""

    @ph.function
    def with_regex(s, pattern):
        s += ph.gen("x", regex=pattern)
        return s["x"]

    rows = [{"pattern": "a"}, {"pattern": "("}, {"nope": 1}, ("a",)]
    states = with_regex.run_batch(rows, backend=ScriptedBackend(lambda *_: "a"))
    names = [type(state.error()).__name__ for state in states]
    assert names == ["NoneType", "ConstraintError", "CompileError", "NoneType"]


def test_failures_can_raise_with_all_results() -> None:
    """on_error="raise" raises after all rows are done, the states attached."""
    with pytest.raises(BatchFailed, match="row 1: ValueError: bad luck") as caught:
        program.run_batch(ROWS, backend=engine(), on_error="raise")
    assert [s.error() is None for s in caught.value.results] == [True, False, True]
    assert isinstance(caught.value.__cause__, ValueError)


def test_bodies_run_once_and_only_with_real_arguments() -> None:
    """No row is run with a placeholder, and none twice."""
    seen = []

    @ph.function
    def note(s, n):
        seen.append(n)
        s += str(n)

    note.run_batch([{"n": n} for n in range(5)], backend=engine())
    assert sorted(seen) == list(range(5))


def test_empty_and_odd_batches() -> None:
    """An empty batch is empty, and a row that is no row is refused."""
    assert program.run_batch([], backend=engine()) == []
    with pytest.raises(CompileError, match="row of a batch"):
        program.run_batch(["text"], backend=engine())
    with pytest.raises(CompileError, match="num_threads"):
        program.run_batch(ROWS, num_threads=0)


def test_generator_reads_rows_as_it_goes() -> None:
    """An endless iterator of rows works: only a window of it is read."""
    read = 0

    def rows():
        nonlocal read
        while True:
            read += 1
            yield {"n": read}

    states = program.run_batch(rows(), backend=engine(), num_threads=2, generator_style=True)
    first = [next(states).value for _ in range(5)]
    states.close()
    assert first == [2, 4, 6, 8, 10]
    assert read <= 5 + 2 * 4 + 1


def test_completed_order_gives_every_row_once() -> None:
    """order="completed" yields whichever is ready, each row once."""
    rows = [{"n": n} for n in range(20)]
    states = program.run_batch(
        rows, backend=engine(), generator_style=True, order="completed", num_threads=4
    )
    assert sorted(s.value for s in states if s.error() is None) == sorted(
        n * 2 for n in range(20) if n != 13
    )


def test_results_file_skips_what_is_done(tmp_path: Path) -> None:
    """A second batch with the same file runs failed, missing and changed rows only."""
    path = tmp_path / "results.jsonl"
    first = engine()
    program.run_batch(ROWS, backend=first, results_file=path)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 1, 2]
    # A crash cut the last line.
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    second = engine()
    rows = [ROWS[0], {"n": 14}, ROWS[2], {"n": 30}]
    states = program.run_batch(rows, backend=second, results_file=path)
    assert [state.value for state in states] == [20, 28, 40, 60]
    assert [state["x"] for state in states] == ["10:", "14:", "20:", "30:"]
    assert states[0].text() == "10:10:" == "".join(states[0].text_iter())
    assert list(states[0].text_iter("x")) == ["10:"]
    assert states[0].get_meta_info("x")["completion_tokens"] == 3
    assert second.steps == 3
    third = engine()
    program.run_batch(rows, backend=third, results_file=path)
    assert third.steps == 0


def test_five_hundred_runs_share_a_few_threads() -> None:
    """500 runs of a three-step program at once need no thread each, and all are right."""

    def helper(s, n):
        s += ph.gen("y")

    @ph.function
    def steps(s, n):
        s += f"{n}" + ph.gen("x")
        helper(s, n)
        s += ph.gen("z")
        return s["z"]

    peak, before = 0, threading.active_count()

    def answer(prompt: str, *_: object) -> str:
        nonlocal peak
        peak = max(peak, threading.active_count())
        return "."

    states = steps.run_batch(
        [{"n": n} for n in range(500)], backend=ScriptedBackend(answer), num_threads=500
    )
    assert [state.text() for state in states] == [f"{n}..." for n in range(500)]
    assert peak - before < 20


def test_batch_inside_a_program() -> None:
    """A program can run a batch of another: on its own engine, and as part of its record."""

    @ph.function
    def outer(s):
        rows = [{"n": 1}, {"n": 13}, {"n": 2}, {"wrong": 0}]
        states = program.run_batch(rows, order="completed")
        s += ph.gen("after")
        later = [state.value for state in program.run_batch([(4,)], generator_style=True)]
        errors = sorted(type(state.error()).__name__ for state in states if state.error())
        return sorted(state.value for state in states if not state.error()), errors, later

    backend = engine()
    state = outer.run(backend=backend, record=True)
    assert state.value == ([2, 4], ["CompileError", "ValueError"], [8])
    assert (len(backend.prompts()), backend.open_sessions) == (5, 0)
    assert outer.replay(state.record()).value == state.value


def test_a_batch_inside_a_program_has_no_settings_of_its_own() -> None:
    """What only a whole run can be told is refused, as for a single program."""

    @ph.function
    def outer(s):
        return program.run_batch([{"n": 1}], seed=1)

    with pytest.raises(ph.errors.CompileError, match="seed= can't be set for a batch inside"):
        outer.run(backend=engine())


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """progress_bar=True shows the rows done, and changes nothing else."""
    states = program.run_batch(ROWS, backend=engine(), progress_bar=True)
    assert len(states) == 3
