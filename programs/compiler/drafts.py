"""Drafts of graph nodes, and the builder that chains them.

What lives here: `Draft` (a node to be, with the statements it runs), temporaries, and the
bookkeeping of open ends. What does not: what Python means (`lower.py`, `expressions.py`).

Temporaries hold values between nodes of one statement; in the code they are `_ph_t[k]`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from phloem.programs.check import Finding

__all__ = ["TEMPS", "Builder", "Draft", "End", "call", "name", "place"]

TEMPS = "_ph_t"
End = tuple[int, str]
"""A draft's exit that leads nowhere yet: (draft, label)."""


@dataclass
class Draft:
    """A node to be. `body` is what it runs; the value that `body` returns decides the exit.

    `role` says how: "run" (None: "next", else the label returned), "test" (truth decides),
    "return" (the program's value).
    """

    kind: str
    line: int
    body: list[ast.stmt]
    role: str = "run"
    fields: dict[str, Any] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    opaque: str | None = None
    early: ast.expr | None = None
    """An expression for a retrieval's effect, if that can be known before its place."""
    problems: list[Finding] = field(default_factory=list)


def place(node: ast.AST, at: ast.AST) -> Any:
    """`node` with the source position of `at` on it and below it, where it has none."""
    ast.copy_location(node, at)
    return ast.fix_missing_locations(node)


def name(identifier: str) -> ast.Name:
    """A variable, read."""
    return ast.Name(identifier, ast.Load())


def call(function: ast.expr, *args: ast.expr) -> ast.Call:
    """A call with positional arguments."""
    return ast.Call(function, list(args), [])


class Builder:
    """The drafts so far and where control flow stands."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.ends: list[End] = []
        self.pre: list[ast.stmt] = []
        self._temps = 0
        self._barrier = 0

    def temp(self) -> int:
        """A fresh temporary."""
        self._temps += 1
        return self._temps - 1

    @staticmethod
    def load(temp: int, at: ast.AST) -> ast.expr:
        """`_ph_t[temp]`, read."""
        return place(ast.Subscript(name(TEMPS), ast.Constant(temp), ast.Load()), at)  # type: ignore[no-any-return]

    @staticmethod
    def store(temp: int, value: ast.expr, at: ast.AST) -> ast.stmt:
        """`_ph_t[temp] = value`."""
        target = ast.Subscript(name(TEMPS), ast.Constant(temp), ast.Store())
        return place(ast.Assign([target], value), at)  # type: ignore[no-any-return]

    def save(self, value: ast.expr) -> ast.expr:
        """Evaluate `value` now, in order, and return an expression for the result."""
        temp = self.temp()
        self.pre.append(self.store(temp, value, value))
        return self.load(temp, value)

    def emit(self, draft: Draft) -> int:
        """Add a draft that runs what was saved and then its own body, after all open ends."""
        draft.body = [*self.pre, *draft.body]
        self.pre = []
        index = len(self.drafts)
        self.drafts.append(draft)
        for source, label in self.ends:
            self.drafts[source].exits[label] = index
        self.ends = [(index, "next")] if draft.role == "run" else []
        return index

    def run(self, statement: ast.stmt, opaque: str | None = None) -> Draft:
        """Add a plain statement, to the last plain draft where it simply follows it."""
        last = self.drafts[-1] if self.drafts else None
        index = len(self.drafts) - 1
        joins = (
            last is not None
            and last.kind == "python"
            and last.opaque is None
            and opaque is None
            and index >= self._barrier
            and self.ends == [(index, "next")]
        )
        if joins and last is not None:
            last.body += [*self.pre, statement]
            self.pre = []
            return last
        draft = Draft("python", statement.lineno, [statement], opaque=opaque)
        self.emit(draft)
        return draft

    def head(self) -> int:
        """The index of the next draft, which a loop will come back to."""
        self.flush()
        self._barrier = len(self.drafts)
        return self._barrier

    def flush(self) -> None:
        """Give saved evaluations that no draft has taken yet a draft of their own."""
        if self.pre:
            statement = self.pre.pop()
            self.run(statement)

    def back(self, ends: list[End], target: int) -> None:
        """Lead open ends back to a draft that exists."""
        for source, label in ends:
            self.drafts[source].exits[label] = target
