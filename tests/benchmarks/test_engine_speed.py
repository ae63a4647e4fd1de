"""How engines' speeds are compared: equal work, turns, and what follows from the times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.program_bench.engines import ENGINES, Engine, Places
from benchmarks.program_bench.speed import CASES, GOALS, PEERS, Goal, Speeds, measure

WORKER = """
import json, sys
name, log, speed, cached = sys.argv[1:]
print(json.dumps({}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    prompts, tokens = asked["prompts"], asked["tokens"]
    with open(log, "a") as out:
        print(json.dumps([name, prompts, tokens]), file=out)
    # A request costs a second, and a millisecond for each of a prompt's tokens.
    seconds = 1 + len(prompts[0]) / 1000 + (tokens - 1) / float(speed)
    done = {"seconds": seconds, "generated": len(prompts) * tokens, "cached": int(cached)}
    print(json.dumps(done), flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where workers write what they were asked."""
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path / "asked"


def engine(log: Path, name: str, speed: float, *, cached: int = 0, batches: bool = True) -> Engine:
    """One that generates `speed` tokens a second in each stream."""
    worker = [sys.executable, str(log.with_name("worker.py")), name, str(log), str(speed)]
    command = [*worker, str(cached)]
    return Engine(name, name, "bf16", lambda places, url: command, batches=batches)


def test_engines_take_turns_at_the_same_prompts_and_requests_costs_are_left_out(log: Path) -> None:
    """Every engine gets the same prompts, no two alike; decoding is what a token more takes."""
    engines = [engine(log, "phloem-bf16-plain", 20), engine(log, "vllm", 10)]
    speeds = measure(engines, Places({}), log.parent / "logs", 2)
    for case, streams in zip(CASES, (1, 8, 32), strict=False):
        assert speeds.median(case.name, "vllm") == pytest.approx(10 * streams)
        assert speeds.reached(Goal(case.name, "phloem-bf16-plain", "vllm", 1)) == pytest.approx(2)
    assert speeds.median("prefill of 1,000", "vllm") == pytest.approx(500)
    assert all(len(rates) == 2 for rates in speeds.rates.values())
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    mine, others = ([rest for name, *rest in asked if name == e.name] for e in engines)
    assert mine == others
    heads = [prompt[0] for prompts, _ in mine for prompt in prompts]
    assert len(set(heads)) == len(heads)
    assert [name for name, *_ in asked[:4]] == 2 * ["phloem-bf16-plain"] + 2 * ["vllm"]


def test_one_that_takes_one_stream_only_and_one_that_finds_a_cache(log: Path) -> None:
    """The first is left out of cases with more; the second has not done the work, and is absent."""
    engines = [engine(log, "llama-cpp", 10, batches=False), engine(log, "vllm", 10, cached=16)]
    speeds = measure(engines, Places({}), log.parent / "logs", 1)
    assert {case for case, _ in speeds.rates} == {"1 stream", "prefill of 1,000"}
    assert speeds.absent == {"vllm": "1 of 1 tokens came, 16 of the prompt were cached"}


def test_absent_engines_and_goals_without_numbers(tmp_path: Path) -> None:
    """What is not there is named with its variable; a goal without its numbers is not judged."""
    speeds = measure([ENGINES["vllm"]], Places({}), tmp_path, 1)
    assert speeds.absent == {"vllm": "PHLOEM_BENCH_VLLM_PYTHON is not set"}
    found = speeds.to_json()
    assert [goal["met"] for goal in found["goals"]] == [None] * len(GOALS)
    rates = {
        ("1 stream", "phloem-int4-plain"): [13.0, 9.0],
        ("1 stream", "llama-cpp"): [10.0, 10.0],
    }
    first, *rest = Speeds(rates, {}, 0).to_json()["goals"]
    assert (first["reached"], first["met"]) == (1.1, False)
    assert {goal["reached"] for goal in rest} == {None}
    assert {goal.engine for goal in GOALS} | {goal.other for goal in GOALS} == set(PEERS)
