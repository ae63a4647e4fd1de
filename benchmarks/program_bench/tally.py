"""What a worker counts while it runs programs.

What lives here: `Tally`, and `Runner` and `TokenRunner`, what a worker asks of an engine. What does
not: the engines. Standard library only.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

__all__ = ["Outputs", "Runner", "Tally", "TokenRunner"]

Outputs = list[tuple[str, str]]


@dataclass
class Tally:
    """Counts of a cell; None where an engine does not say.

    `prompt` = `reused` + `prefilled` tokens. `generated` counts output tokens, `forced` those
    that the constraint dictated, `accepted` those that came from `drafted` guesses, `scored` the
    rows of choices. `calls` are HTTP requests, `tokenised` texts turned into tokens. `lengths`
    holds the output tokens of every generation by the name of its step. Of phloem's embedded
    engine also: its forward `passes` by rows, the seconds in them, and the prefill that was needed.
    """

    prompt: int | None = 0
    reused: int | None = 0
    prefilled: int | None = 0
    generated: int = 0
    forced: int | None = 0
    drafted: int | None = 0
    accepted: int | None = 0
    scored: int | None = 0
    calls: int = 0
    tokenised: int | None = 0
    lengths: dict[str, list[int]] = field(default_factory=dict)
    passes: Counter[int] = field(default_factory=Counter)
    decoder_s: float = 0.0
    optimal_prefill: int = 0
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def call(self, step: str, prompt: int | None, reused: int | None, generated: int) -> None:
        """Count one generation of a client that sends text. May be called from any thread."""
        fresh = None if prompt is None or reused is None else prompt - reused
        with self.lock:
            self.calls += 1
            self.tokenised = _sum(self.tokenised, 1)
            self.prompt = _sum(self.prompt, prompt)
            self.reused = _sum(self.reused, reused)
            self.prefilled = _sum(self.prefilled, fresh)
            self.generated += generated
            if step:
                self.lengths.setdefault(step, []).append(generated)

    def add(self, other: Tally) -> None:
        """Add another's counts; what either does not know is not known of both."""
        for name in ("prompt", "reused", "prefilled", "generated", "forced", "drafted", "accepted",
                     "scored", "calls", "tokenised"):  # fmt: skip
            setattr(self, name, _sum(getattr(self, name), getattr(other, name)))
        for step, lengths in other.lengths.items():
            self.lengths.setdefault(step, []).extend(lengths)
        self.passes.update(other.passes)
        self.decoder_s += other.decoder_s
        self.optimal_prefill += other.optimal_prefill

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "lock"}


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class Runner(Protocol):
    """An engine, as a worker drives it."""

    def info(self) -> dict[str, Any]:
        """Version and weight format, for the report."""
        ...

    def prepare(self, shape: str, shared: str) -> None:
        """Make the program of a shape; outside of what is timed."""
        ...

    def one(self, row: dict[str, Any]) -> Outputs:
        """Run one program."""
        ...

    def many(self, rows: list[dict[str, Any]], at_once: int) -> list[Outputs]:
        """Run programs, `at_once` at a time where the engine can."""
        ...

    def tally(self) -> Tally:
        """The counts since the last call."""
        ...


class TokenRunner(Protocol):
    """An engine that takes token ids, for the speed of the engine itself (`speed.py`)."""

    def generate(self, prompts: list[list[int]], tokens: int) -> tuple[int, int]:
        """Greedy texts of exactly `tokens` tokens, all at once where the engine can. Gives the
        tokens generated, and those of the prompts that came from a cache."""
        ...
