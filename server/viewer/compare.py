"""Two runs side by side, step by step.

What lives here: which steps belong together, and where their texts differ. What does not: how it
looks (templates/compare.html).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from phloem.server.trace.steps import Step

__all__ = ["Pair", "Part", "pairs_of", "parts"]

LONGEST = 8000
"""Texts that are longer are not compared word by word."""
AROUND = 300
"""Characters of a prompt shown before its first difference."""

Part = tuple[str, bool]
"""A piece of text, and whether the other side has something else there."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A step of the old run and the one of the new run that stands for it (None: there is none).

    `same` is whether they came to the same. The prompts are given from shortly before their first
    difference, and are empty if they are equal.
    """

    old: Step | None
    new: Step | None
    old_number: int | None
    new_number: int | None
    same: bool
    old_text: tuple[Part, ...] = ()
    new_text: tuple[Part, ...] = ()
    old_prompt: tuple[Part, ...] = ()
    new_prompt: tuple[Part, ...] = ()


def pairs_of(old: Sequence[Step], new: Sequence[Step]) -> tuple[Pair, ...]:
    """The steps of two runs in pairs: those with the same branch, kind, name and node, in order."""
    keys = [[(s.path, s.kind, s.name, s.node) for s in steps] for steps in (old, new)]
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    found = []
    for what, a, b, c, d in matcher.get_opcodes():
        if what == "equal":
            found += [_pair(old[a + n], new[c + n], a + n, c + n) for n in range(b - a)]
        else:
            found += [Pair(old[n], None, n, None, False, ((shown(old[n]), True),))
                      for n in range(a, b)]  # fmt: skip
            found += [Pair(None, new[n], None, n, False, (), ((shown(new[n]), True),))
                      for n in range(c, d)]  # fmt: skip
    return tuple(found)


def _pair(old: Step, new: Step, old_number: int, new_number: int) -> Pair:
    texts = shown(old), shown(new)
    same = texts[0] == texts[1] and old.error == new.error
    prompts = ((), ()) if old.prompt == new.prompt else _prompts(old.prompt, new.prompt)
    return Pair(old, new, old_number, new_number, same, *parts(*texts), *prompts)


def shown(step: Step) -> str:
    """What a step came to, as text."""
    if step.error is not None:
        return f"{step.error[0]}: {step.error[1]}"
    if step.kind == "retrieve":
        return "\n".join(_hit(hit) for hit in step.hits)
    return step.text or ("" if step.value is None else str(step.value))


def _hit(hit: Any) -> str:
    score = hit.get("score")
    return f"{hit.get('title') or hit.get('id')}" + (f"  {score:.3f}" if score is not None else "")


def _prompts(old: str, new: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    first = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    start = max(0, (min(len(old), len(new)) if first is None else first) - AROUND)
    return parts(old[start : start + LONGEST], new[start : start + LONGEST])


def parts(old: str, new: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Both texts, cut by words into what they share and what they do not."""
    if old == new:
        whole = ((old, False),) if old else ()
        return whole, whole
    if len(old) > LONGEST or len(new) > LONGEST:
        return ((old, True),), ((new, True),)
    words = [re.findall(r"\s*\w+|\s*[^\w\s]|\s+", text) for text in (old, new)]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    left: list[Part] = []
    right: list[Part] = []
    for what, a, b, c, d in matcher.get_opcodes():
        if b > a:
            left.append(("".join(words[0][a:b]), what != "equal"))
        if d > c:
            right.append(("".join(words[1][c:d]), what != "equal"))
    return tuple(left), tuple(right)
