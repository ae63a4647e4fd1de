"""What is measured: the shapes of programs, their steps, and the rows they run on.

What lives here: `Step`, `Shape` and the table `SHAPES`. What does not: the programs themselves,
which are written twice with the same texts: in SGLang's language (`frontend.py`) and as calls of
an engine (`glue.py`).

Work is equal by construction. A free step has a fixed number of tokens and ignores the end of the
text. A constrained step's values are single tokens and digits where possible, so that its texts
have the same number of tokens whatever the model says; what is left of a difference is counted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import texts

__all__ = ["SHAPES", "Shape", "Step", "rows_of"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One generation. `tokens` is its length where it is free, else the most it may have.

    A text of a constrained step matches `pattern`; `gbnf` says the same in llama.cpp's language.
    Of `choices` exactly one is said: a single token, or two where an engine parts the blank.
    """

    tokens: int
    pattern: str | None = None
    gbnf: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Whether the text may be anything, of a fixed length."""
        return self.pattern is None and not self.choices

    def allows(self, text: str) -> bool:
        """Whether `text` keeps the constraint."""
        if self.choices:
            return text in self.choices
        return self.pattern is None or re.fullmatch(self.pattern, text) is not None


@dataclass(frozen=True)
class Shape:
    """One kind of program.

    `steps` by name, `times` how often each is taken in one program (default once). `shared` is the
    text that all programs of a cell begin with, made from the cell's salt. `row` makes one
    program's arguments from a number. `batch` programs make a cell, or as many as run at once if
    it is 0. `again`: one at a time, each program is run a second time at once.
    """

    title: str
    steps: dict[str, Step]
    row: Callable[[int], Row]
    shared: Callable[[int], str] = lambda salt: ""  # noqa: ARG005 - most share nothing
    times: dict[str, int] = field(default_factory=dict)
    batch: int = 0
    single: int = 3
    again: bool = False

    def tokens(self) -> int:
        """Output tokens of the free steps of one program."""
        free = {name: step for name, step in self.steps.items() if step.free}
        return sum(step.tokens * self.times.get(name, 1) for name, step in free.items())


_ORDER = (
    r'\{"order": "[0-9]{6}", "name": "[A-Z][a-z]{2,9} [A-Z][a-z]{2,9}", '
    r'"item": "[a-z]{3,9} [a-z]{3,9}", "units": "[0-9]{2}", "city": "[A-Z][a-z]{3,9}", '
    r'"state": "(paid|open|late)"\}'
)
_ORDER_GBNF = (
    r'root ::= "{\"order\": \"" [0-9]{6} "\", \"name\": \"" name " " name "\", \"item\": \"" item '
    r'" " item "\", \"units\": \"" [0-9]{2} "\", \"city\": \"" [A-Z] [a-z]{3,9} '
    r'"\", \"state\": \"" ("paid" | "open" | "late") "\"}"'
    "\nname ::= [A-Z] [a-z]{2,9}\nitem ::= [a-z]{3,9}\n"
)
_CHECK = (
    r'\{"order": "[0-9]{6}", "state": "(paid|open|late)", "days": "[0-9]{2}", '
    r'"fee": "[0-9]{2}", "source": "[1-4]"\}'
)
_CHECK_GBNF = (
    r'root ::= "{\"order\": \"" [0-9]{6} "\", \"state\": \"" ("paid" | "open" | "late") '
    r'"\", \"days\": \"" [0-9]{2} "\", \"fee\": \"" [0-9]{2} "\", \"source\": \"" [1-4] "\"}"'
)
_VERDICT = r" (yes|no), because the (passage|customer|order) (says|shows) (so|this)\."
_VERDICT_GBNF = (
    'root ::= " " ("yes" | "no") ", because the " ("passage" | "customer" | "order") " " '
    '("says" | "shows") " " ("so" | "this") "."'
)
_CALL = r'\{"tool": "(search|lookup|count)", "row": "[0-9]{2}"\}'
_CALL_GBNF = (
    r'root ::= "{\"tool\": \"" ("search" | "lookup" | "count") "\", \"row\": \"" [0-9]{2} "\"}"'
)
_DIGIT = Step(3, r" [0-9]", 'root ::= " " [0-9]')


def _numbered(number: int) -> Row:
    return {"case": number}


SHAPES: dict[str, Shape] = {
    "chain": Shape(
        "five-step chain, lengths fixed",
        {"intent": Step(3), "answer": Step(80), "verdict": Step(20), "closing": Step(64)},
        _numbered,
        again=True,
    ),
    "rag": Shape(
        "five-step RAG, constrained",
        {
            "intent": Step(6, choices=(" refund", " order", " account")),
            "answer": Step(160, _CHECK, _CHECK_GBNF),
            "verdict": Step(64, _VERDICT, _VERDICT_GBNF),
            "closing": Step(48),
        },
        _numbered,
        again=True,
    ),
    "tree": Shape(
        "tree of thought, 3 branches",
        {
            "plan": Step(24),
            "execute": Step(32),
            "reflect": Step(20),
            "score": _DIGIT,
            "final": Step(30),
        },
        lambda number: {"problem": texts.problem(number)},
        shared=texts.solved_problems,
        times={"plan": 3, "execute": 3, "reflect": 3, "score": 3},
    ),
    "vote": Shape(
        "vote of 5 chains",
        {"thoughts": Step(48), "answer": _DIGIT},
        lambda number: {"problem": texts.problem(number)},
        shared=texts.solved_problems,
        times={"thoughts": 5, "answer": 5},
    ),
    "react": Shape(
        "ReAct replay, 6 tool turns",
        {"thought": Step(24), "call": Step(64, _CALL, _CALL_GBNF), "final": Step(40)},
        _numbered,
        times={"thought": 6, "call": 6},
        single=2,
    ),
    "few_shot": Shape(
        "few-shot classification, 100 inputs",
        {"feeling": Step(6, choices=texts.FEELINGS)},
        lambda number: {"text": texts.review(number)[0]},
        shared=texts.examples_of_feelings,
        batch=100,
        single=100,
    ),
    "json": Shape(
        "JSON extraction, 50 items",
        {"order": Step(160, _ORDER, _ORDER_GBNF)},
        lambda number: {"notice": texts.notice(number)},
        shared=texts.examples_of_orders,
        batch=50,
        single=50,
    ),
    "chat": Shape(
        "chat, 4 turns",
        {"reply": Step(48)},
        _numbered,
        times={"reply": 4},
    ),
}


def rows_of(name: str, salt: int, count: int) -> tuple[str, list[Row]]:
    """The shared text and `count` rows of a cell; equal salts give equal work."""
    shape = SHAPES[name]
    rng = random.Random(f"{name} {salt}")
    shared = shape.shared(rng.randrange(10**9))
    return shared, [shape.row(rng.randrange(10**9)) for _ in range(count)]
