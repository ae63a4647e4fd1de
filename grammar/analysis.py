"""Questions about regular expressions that may take long, asked of `interegular`.

What lives here: exact lengths, emptiness and overlap by finite automata, in a process of its own
that is killed when its budget is spent: some expressions have automata of any size. "Don't
know" (None) is an answer. What does not: anything on the way of a token.

`interegular` reads a subset of Python's syntax; what it can't read is "don't know" as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import interegular

__all__ = ["Automaton", "automaton", "overlap"]


@dataclass(frozen=True, slots=True)
class Automaton:
    """What the automaton of one expression tells: lengths in characters, and whether it is empty.

    `max_chars` is None if there is no longest text.
    """

    empty: bool
    min_chars: int
    max_chars: int | None


def automaton(pattern: str, *, budget_s: float = 0.5) -> Automaton | None:
    """Exact facts on the full matches of `pattern`; None if not known within the budget."""
    found = _ask({"ask": "lengths", "patterns": [pattern]}, budget_s)
    return None if found is None else Automaton(**found)


def overlap(left: str, right: str, *, budget_s: float = 0.5) -> str | None:
    """A text that both expressions match in full, "" for none; None if not known in time.

    The empty text is never reported as an overlap.
    """
    found = _ask({"ask": "overlap", "patterns": [left, right]}, budget_s)
    return None if found is None else str(found["text"])


def _ask(question: dict[str, Any], budget_s: float) -> dict[str, Any] | None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=budget_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    parsed: list[Any] = [interegular.parse_pattern(text) for text in question["patterns"]]
    machines = [pattern.to_fsm().reduce() for pattern in parsed]
    if question["ask"] == "overlap":
        both = machines[0] & machines[1]
        texts = (text for text in both.strings() if text) if not both.empty() else iter(())
        return {"text": "".join(str(char) for char in next(texts, ""))}
    machine = machines[0]
    if machine.empty():
        return {"empty": True, "min_chars": 0, "max_chars": 0}
    shortest = next(machine.strings())
    try:
        longest: int | None = _longest(machine)
    except RecursionError:
        longest = None
    return {"empty": False, "min_chars": len(shortest), "max_chars": longest}


def _longest(machine: Any) -> int | None:
    """The length of the longest accepted text; None where a live cycle allows any length."""
    live = {state for state in machine.states if machine.islive(state)}
    depth: dict[Any, int | None] = {}
    path: set[Any] = set()

    def walk(state: Any) -> int | None:
        if state in path:
            return None
        if state not in depth:
            path.add(state)
            best: int | None = 0
            for target in set(machine.map.get(state, {}).values()) & live:
                below = walk(target)
                best = None if below is None or best is None else max(best, below + 1)
            path.discard(state)
            depth[state] = best
        return depth[state]

    return walk(machine.initial)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(json.load(sys.stdin))))
