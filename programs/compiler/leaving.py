"""Statements that leave themselves: `return`, `break` and `continue` as labels.

What lives here: finding them in a statement and rewriting them. What does not: where a label
leads (`lower.py`). A statement that runs as it stands is a function of its own, so it can't jump
out of the program's loops: it returns the name of the jump instead, by way of its own `finally`
and `with` blocks, as the jump itself would go.
"""

from __future__ import annotations

import ast

from phloem.programs.compiler.drafts import Builder, place

__all__ = ["labels", "rewritten"]


def labels(node: ast.stmt) -> set[str]:
    """Which of return, break and continue leave this statement."""
    found: set[str] = set()

    def walk(item: ast.AST, depth: int) -> None:
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                return
            case ast.Return():
                found.add("return")
            case ast.Break() if depth == 0:
                found.add("break")
            case ast.Continue() if depth == 0:
                found.add("continue")
            case ast.For() | ast.AsyncFor() | ast.While():
                for part in item.body:
                    walk(part, depth + 1)
                for part in item.orelse:
                    walk(part, depth)
                return
        for child in ast.iter_child_nodes(item):
            walk(child, depth)

    walk(node, 0)
    return found


def rewritten(node: ast.stmt, returned: int, builder: Builder) -> ast.stmt:
    """`node` with its jumps out replaced by returned labels; what it returns goes into the
    temporary `returned`."""
    return _Leaving(returned, builder).visit(node)  # type: ignore[no-any-return] # a statement


class _Leaving(ast.NodeTransformer):
    """Rewrites the jumps that leave a statement into the label that its fragment returns."""

    def __init__(self, returned: int, builder: Builder) -> None:
        self._returned = returned
        self._builder = builder
        self._depth = 0

    def _label(self, label: str, at: ast.stmt) -> ast.stmt:
        return place(ast.Return(ast.Constant(label)), at)  # type: ignore[no-any-return]

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        value = node.value or place(ast.Constant(None), node)
        return [self._builder.store(self._returned, value, node), self._label("return", node)]

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return node if self._depth else self._label("break", node)

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return node if self._depth else self._label("continue", node)

    def _visit_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> ast.stmt:
        self._depth += 1
        node.body = [part for item in node.body for part in _listed(self.visit(item))]
        self._depth -= 1
        node.orelse = [part for item in node.orelse for part in _listed(self.visit(item))]
        return node

    visit_For = visit_AsyncFor = visit_While = _visit_loop  # noqa: N815 - ast's names

    def _skip(self, node: ast.stmt) -> ast.stmt:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _skip  # noqa: N815


def _listed(found: ast.stmt | list[ast.stmt]) -> list[ast.stmt]:
    return found if isinstance(found, list) else [found]
