"""The arithmetic of the benchmark: optimum prefill, floors, own cost, equal work.

What lives here: pure functions over numbers and tokens. What does not: measuring.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .shapes import Shape

__all__ = [
    "Calibration",
    "TokenTrie",
    "expected_seconds",
    "floor_seconds",
    "invalid_outputs",
    "optimal_prefill",
    "percentile",
    "unequal_steps",
]

LENGTHS_MAY_DIFFER = 0.10
"""Share by which the mean length of a constrained step may differ before it is pointed out."""


class TokenTrie:
    """Token sequences, each prefix held once. Independent of any engine's cache."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def insert(self, tokens: Iterable[int]) -> int:
        """Add a sequence; returns how many of its prefixes were new."""
        at, before = 0, len(self._children)
        for token in tokens:
            at = self._children.setdefault((at, token), len(self._children) + 1)
        return len(self._children) - before


def optimal_prefill(jobs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
    """Tokens that must be computed as prompts if nothing is ever computed twice.

    A job is (prompt, all tokens at its end), in the order of arrival. The KV of a generated token
    comes from decoding, but for the last one: nothing was computed after it.
    """
    trie, needed = TokenTrie(), 0
    for prompt, tokens in jobs:
        needed += trie.insert(prompt)
        trie.insert(tokens[:-1] if len(tokens) > len(prompt) else prompt)
    return needed


@dataclass(frozen=True)
class Calibration:
    """What the decoder alone takes: seconds of a pass by its rows, tokens per second of prefill."""

    step_s: Mapping[int, float]
    prefill_per_s: float

    def pass_s(self, rows: int) -> float:
        """Seconds of a pass of `rows` rows: measured, between two measured ones, or as prefill."""
        known = sorted(self.step_s)
        if rows >= known[-1]:
            return max(self.step_s[known[-1]], rows / self.prefill_per_s)
        upper = next(k for k in known if k >= rows)
        lower = max((k for k in known if k <= rows), default=upper)
        if upper == lower:
            return self.step_s[upper]
        share = (rows - lower) / (upper - lower)
        return self.step_s[lower] + share * (self.step_s[upper] - self.step_s[lower])


def floor_seconds(calibration: Calibration, prefill: int, generated: int) -> float:
    """Seconds of a perfect runtime without guesses: each token once, nothing but the decoder."""
    return prefill / calibration.prefill_per_s + generated * calibration.step_s[1]


def expected_seconds(calibration: Calibration, passes: Mapping[int, int]) -> float:
    """Seconds that the decoder's passes should take, from their number by rows."""
    return sum(count * calibration.pass_s(rows) for rows, count in passes.items())


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed (nearest rank)."""
    ranked = sorted(values)
    at = max(0, -(-len(ranked) * share // 1) - 1)
    return ranked[int(at)]


def invalid_outputs(shape: Shape, outputs: Iterable[Iterable[Sequence[str]]]) -> list[str]:
    """What is wrong with the outputs of programs: steps missing, and texts against a constraint."""
    wrong = []
    for number, program in enumerate(outputs):
        seen: dict[str, int] = {}
        for name, text in program:
            seen[name] = seen.get(name, 0) + 1
            if not shape.steps[name].allows(text):
                wrong.append(f"program {number}, {name}: {text[:80]!r}")
        wrong += [
            f"program {number}, {name}: {seen.get(name, 0)} times"
            for name in shape.steps
            if seen.get(name, 0) != shape.times.get(name, 1)
        ]
    return wrong


def unequal_steps(
    shape: Shape,
    lengths: Mapping[str, Sequence[int]],
    reference: Mapping[str, Sequence[int]] | None = None,
) -> list[str]:
    """Steps whose lengths are not those that the shape fixes, or not those of the reference."""
    found = []
    for name, step in shape.steps.items():
        here = lengths.get(name)
        if not here or step.choices:
            continue  # a choice is scored by some engines and written by others
        if step.free:
            if set(here) != {step.tokens}:
                found.append(f"{name}: {min(here)} to {max(here)} tokens, not {step.tokens}")
        elif reference and reference.get(name):
            mean, there = statistics.fmean(here), statistics.fmean(reference[name])
            if abs(mean - there) > LENGTHS_MAY_DIFFER * there:
                found.append(f"{name}: {mean:.1f} tokens, elsewhere {there:.1f}")
    return found


def merged_lengths(cells: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The lengths of several cells together."""
    together: dict[str, list[int]] = {}
    for cell in cells:
        for name, lengths in cell["lengths"].items():
            together.setdefault(name, []).extend(lengths)
    return together
