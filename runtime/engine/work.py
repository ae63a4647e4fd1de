"""What sessions ask of an engine, as plain values: they may cross to another process.

What lives here: one record for each kind of work, which names its kind. What does not: doing it
(`runtime/local.py` makes jobs of them) and what comes back (`messages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.tokens import Choice
from phloem.runtime.place import Place

__all__ = ["Flush", "Generate", "Pin", "Score", "Work"]


@dataclass(frozen=True, slots=True)
class Generate:
    """Go on after `tokens`; with `heal` the border before the first new token may move.

    `seed` is the key of the sampling noise, together with the place's branch.
    """

    tokens: list[int]
    place: Place
    params: SamplingParams
    seed: int
    constraint: Constraint | None = None
    heal: bool = False
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Score:
    """Score each choice after `tokens`, and with `bare` after nothing too."""

    tokens: list[int]
    place: Place
    choices: list[Choice]
    bare: bool = False
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Pin:
    """Compute a constant prefix and keep it."""

    tokens: list[int]
    namespace: str = ""
    kind: Literal["pin"] = "pin"


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget all KV that no running step needs, pins too."""

    kind: Literal["flush"] = "flush"


Work: TypeAlias = Generate | Score | Pin | Flush
