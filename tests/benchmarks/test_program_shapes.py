"""The programs of the benchmark: both ways of writing them, and what they ask of an engine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import phloem
from benchmarks.program_bench import frontend, glue, worker
from benchmarks.program_bench.counting import invalid_outputs, unequal_steps
from benchmarks.program_bench.engine_phloem import PhloemRunner, embedded
from benchmarks.program_bench.shapes import SHAPES, Step, rows_of
from benchmarks.program_bench.tally import Outputs
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.model.tiny import tiny_model

SAID = {
    "answer": '{"order": "123456", "state": "open", "days": "36", "fee": "10", "source": "1"}',
    "verdict": " yes, because the order says so.",
    "call": '{"tool": "count", "row": "37"}',
    "order": '{"order": "123456", "name": "Tom Hill", "item": "tea cup", "units": "12", '
    '"city": "Oslo", "state": "paid"}',
}


def _said(prompt: str, tokens: int, pattern: str | None) -> str:
    """A text that depends on the prompt where it may."""
    if pattern is None:
        return hashlib.sha256(prompt.encode()).hexdigest().ljust(tokens, "x")[:tokens]
    found = [text for text in SAID.values() if re.fullmatch(pattern, text)]
    return found[0] if found else f" {len(prompt) % 10}"


def _script(prompt: str, params: SamplingParams, constraint: Constraint | None) -> str:
    return _said(prompt, params.max_tokens, constraint.source if constraint else None)


class Recorder:
    """Cursors that answer as the script does, and note each prompt."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def open(self) -> RecordingCursor:
        return RecordingCursor(self, "")

    def together(self, tasks: Sequence[Callable[[], Outputs]]) -> list[Outputs]:
        return [task() for task in tasks]


class RecordingCursor:
    """See `glue.Cursor`."""

    def __init__(self, recorder: Recorder, text: str) -> None:
        self.recorder, self.text = recorder, text

    def append(self, text: str) -> None:
        self.text += text

    def take(self, name: str, step: Step) -> str:
        del name
        said = step.choices[0] if step.choices else _said(self.text, step.tokens, step.pattern)
        if not step.choices:
            self.recorder.prompts.append(self.text)
        self.text += said
        return said

    def copy(self) -> RecordingCursor:
        return RecordingCursor(self.recorder, self.text)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_of_writing_a_program_send_the_same_texts(shape: str) -> None:
    """Whole prompts and outputs of the glue are those of the program in SGLang's language."""
    shared, rows = rows_of(shape, 2, 1)
    first = {s.choices[0]: -0.1 for s in SHAPES[shape].steps.values() if s.choices}
    backend = ScriptedBackend(_script, scores=first)
    program = frontend.program(phloem, shape, shared)
    state = program.run(**rows[0], temperature=0, backend=backend)
    recorder = Recorder()
    outputs = glue.run(recorder, shape, shared, rows[0])
    assert outputs == state.value
    assert sorted(recorder.prompts) == sorted(backend.prompts())
    assert program.graph.opaque == ()
    assert invalid_outputs(SHAPES[shape], [outputs]) == []


@pytest.fixture(scope="module")
def runner() -> Any:
    """The embedded engine with a tiny model."""
    runner = embedded(tiny_model(max_positions=8192), "float32", kv_tokens=65_536)
    yield runner
    runner.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_runs_quickly_with_its_lengths_and_no_prefix_computed_twice(
    shape: str, runner: PhloemRunner
) -> None:
    """Free steps have their lengths, outputs keep their constraints, prefill is the optimum."""
    request = {"op": "cell", "shape": shape, "at_once": 1, "salt": 2, "count": 2, "limit_s": 0}
    if not SHAPES[shape].again:
        request |= {"at_once": 2}
    part = worker.run_cell(runner, request, set())["parts"]["first"]
    programs = len(part["outputs"])
    assert invalid_outputs(SHAPES[shape], part["outputs"]) == []
    assert unequal_steps(SHAPES[shape], part["lengths"]) == []
    assert part["prompt"] == part["reused"] + part["prefilled"]
    assert 0 < part["prefilled"] <= 1.04 * part["optimal_prefill"]
    assert sum(rows * count for rows, count in part["passes"].items()) >= part["prefilled"]
    assert part["calls"] == 0
    steps = sum(len(lengths) for lengths in part["lengths"].values())
    expected = sum(
        SHAPES[shape].times.get(name, 1)
        for name, step in SHAPES[shape].steps.items()
        if not step.choices
    )
    assert steps == programs * expected
