"""Tokens per second of the engines themselves: the same prompts and token counts, in one run.

What lives here: the cases, the measuring in turns, and the goals. What does not: the engines
(`engines.py`) and their processes (`processes.py`); `benchmarks/engine.py --peers` prints.

Prompts are random token ids, no two beginning alike: nothing is tokenised and nothing cached;
texts are greedy and of fixed length, without guesses, and come whole. Decoding is timed as the
difference to the same request for one token: what a request costs by itself, its prompt and HTTP
included, counts for no engine.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engines import Engine, Places
from .processes import Meter, Pool, StartFailure, TooSlow

__all__ = ["CASES", "GOALS", "PEERS", "Case", "Goal", "Speeds", "measure"]

LIMIT_S = 120.0
DISTURBED = 0.3
"""Cores that others may use while an engine is measured."""

Rates = dict[tuple[str, str], list[float]]


@dataclass(frozen=True)
class Case:
    """`streams` prompts of `prompt` tokens at once, each gone on from by `tokens` tokens."""

    name: str
    streams: int
    prompt: int
    tokens: int


CASES = (
    Case("1 stream", 1, 32, 128),
    Case("8 streams", 8, 32, 64),
    Case("32 streams", 32, 32, 64),
    Case("prefill of 1,000", 1, 1000, 1),
)
PEERS = ("phloem-int4-plain", "phloem-bf16-plain", "llama-cpp", "vllm")


@dataclass(frozen=True)
class Goal:
    """In a case an engine is to be `least` times as fast as another one."""

    case: str
    engine: str
    other: str
    least: float


GOALS = (
    Goal("1 stream", "phloem-int4-plain", "llama-cpp", 1.2),
    Goal("1 stream", "phloem-bf16-plain", "vllm", 1.1),
    Goal("8 streams", "phloem-int4-plain", "vllm", 1.2),
    Goal("8 streams", "phloem-bf16-plain", "vllm", 1.2),
    Goal("32 streams", "phloem-int4-plain", "vllm", 1.2),
    Goal("32 streams", "phloem-bf16-plain", "vllm", 1.2),
    Goal("prefill of 1,000", "phloem-int4-plain", "vllm", 1.1),
    Goal("prefill of 1,000", "phloem-bf16-plain", "vllm", 1.1),
)


@dataclass(frozen=True)
class Speeds:
    """What was measured: tokens per second of each round by case and engine, why engines are
    absent, and how often others used the machine meanwhile."""

    rates: Rates
    absent: Mapping[str, str]
    disturbed: int

    def median(self, case: str, engine: str) -> float | None:
        """Tokens per second, None where it was not measured."""
        found = self.rates.get((case, engine))
        return statistics.median(found) if found else None

    def reached(self, goal: Goal) -> float | None:
        """The median of the rounds' ratios."""
        both = (self.rates.get((goal.case, name), ()) for name in (goal.engine, goal.other))
        ratios = [one / other for one, other in zip(*both, strict=False)]
        return statistics.median(ratios) if ratios else None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        engines = dict.fromkeys(engine for _, engine in self.rates)
        return {
            "tok_s": {
                case.name: {
                    engine: round(median, 1)
                    for engine in engines
                    if (median := self.median(case.name, engine)) is not None
                }
                for case in CASES
            },
            "goals": [
                {
                    "what": f"{goal.case}: {goal.engine} / {goal.other}",
                    "least": goal.least,
                    "reached": None if reached is None else round(reached, 3),
                    "met": None if reached is None else reached >= goal.least,
                }
                for goal in GOALS
                for reached in (self.reached(goal),)
            ],
            "rounds": {
                f"{case}, {engine}": [round(rate, 1) for rate in rates]
                for (case, engine), rates in self.rates.items()
            },
            "absent": dict(self.absent),
            "disturbed": self.disturbed,
        }


class _Unequal(Exception):
    """An engine did other work than it was asked for, or none."""


def measure(engines: Sequence[Engine], places: Places, logs: Path, rounds: int) -> Speeds:
    """All engines in turn, case by case, `rounds` times after one to warm up."""
    absent = {engine.name: reason for engine in engines if (reason := engine.missing(places))}
    rates: Rates = {}
    disturbed = 0
    with Pool(places, logs) as pool:
        for number in range(rounds + 1):
            for case in CASES:
                for engine in engines:
                    if engine.name in absent or (case.streams > 1 and not engine.batches):
                        continue
                    try:
                        rate, others = _rate(pool, engine, case, number)
                    except (StartFailure, TooSlow, _Unequal) as failure:
                        absent[engine.name] = str(failure)
                        pool.drop(engine)
                        continue
                    if number:
                        rates.setdefault((case.name, engine.name), []).append(rate)
                        disturbed += others > DISTURBED
            print(f"round {number} of {rounds} is done", file=sys.stderr, flush=True)
    return Speeds(rates, absent, disturbed)


def _rate(pool: Pool, engine: Engine, case: Case, number: int) -> tuple[float, float]:
    """Tokens per second, and the cores that others used meanwhile."""
    worker = pool.turn(engine)
    meter = Meter(pool.running(engine))

    def seconds(tokens: int) -> float:
        request = {"op": "generate", "prompts": _prompts(case, number, tokens), "tokens": tokens}
        answer = worker.ask(request, LIMIT_S)
        if "error" in answer:
            raise _Unequal(answer["error"])
        asked, did = case.streams * tokens, (answer["generated"], answer["cached"])
        if did != (asked, 0):
            raise _Unequal(f"{did[0]} of {asked} tokens came, {did[1]} of the prompt were cached")
        found: float = answer["seconds"]
        return found

    if case.tokens == 1:
        rate = case.prompt / seconds(1)
    else:
        first, whole = seconds(1), seconds(case.tokens)
        rate = case.streams * (case.tokens - 1) / max(whole - first, 1e-9)
    return rate, meter.others() or 0.0


def _prompts(case: Case, number: int, tokens: int) -> list[list[int]]:
    """The same for every engine. No two of all requests begin with the same token."""
    request = 2 * (number * len(CASES) + CASES.index(case)) + (tokens == 1)
    first, draw = 1000 + 32 * request, random.Random(request)
    heads = range(first, first + case.streams)
    return [[head, *draw.choices(range(1000, 40_000), k=case.prompt - 1)] for head in heads]
