"""What the prefix cache reuses of what can be reused, on small traces in the shapes of programs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache_policy import Replay, compare, pages_for, unbounded
from benchmarks.traces import SHAPES, Step, best_hits, footprint, reusable, working_set

RUNS = {"tree of thought": 6, "multi-chain": 12, "ReAct": 20, "few-shot": 120, "chat": 30}
KNOWN = ("tree of thought", "multi-chain", "ReAct")
"""Shapes whose programs tell when they go on: in the others strangers decide."""


@pytest.fixture(scope="module")
def traces():
    return {shape: make(1, RUNS[shape]) for shape, make in SHAPES.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_unbounded_pool_reuses_exactly_what_a_trie_counts(shape, traces):
    """Not a token less than was computed before, and not one more."""
    assert unbounded(traces[shape]) == 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_hints_and_what_was_learned_beat_recency(shape, traces):
    """With half of what is live at a time, `program` reuses more than `lru`; where programs tell
    of their next steps, nearly all that is possible."""
    found = compare(traces[shape], int(working_set(traces[shape]) * 0.5))
    assert found["program"] > found["lru"]
    assert found["program"] >= (0.93 if shape in KNOWN else 0.7)
    assert ("told" in found) == (shape not in KNOWN)


@pytest.mark.parametrize("shape", ["few-shot", "chat"])
def test_what_is_learned_of_strangers_is_nearly_all_that_can_be_known(shape):
    """With half of what is live, the cache reuses nine tenths of what it would if it were told the
    chances from which the trace was drawn; learning them costs the rest."""
    trace = SHAPES[shape](2, 2 * RUNS[shape])
    found = compare(trace, int(working_set(trace) * 0.5))
    assert found["program"] >= 0.9 * found["told"]


def test_the_sizes_of_a_trace_mean_what_they_say(traces):
    """Half of the working set loses something, the working set (and a step's own room) nothing."""
    steps = traces["multi-chain"]
    live = working_set(steps)
    longest = max(len(step.prompt) + len(step.output) for step in steps)
    assert live <= footprint(steps)
    assert best_hits(steps, live + longest) == reusable(steps)
    assert best_hits(steps, live // 2) < reusable(steps)


TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=7)


@settings(deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=14), st.integers(8, 16), st.booleans())
def test_no_cache_beats_the_bound(prompts, capacity, hints):
    """Random steps on pages of a single token: what is reused never exceeds the bound."""
    steps = [
        Step(float(i), str(i), tuple(prompt), (9,), "node", None, True)
        for i, prompt in enumerate(prompts)
    ]
    assert Replay(capacity, hints=hints, page_size=1).run(steps) <= best_hits(steps, capacity)


def test_pages_are_whole():
    """A page in part is a page."""
    assert [pages_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
