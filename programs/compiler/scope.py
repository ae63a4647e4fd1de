"""Names in Python code: which a piece of code reads and which it sets.

What lives here: walks over an ast that stop where another scope begins. What does not: any
knowledge of primitives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

__all__ = ["loaded", "shallow", "stored"]

_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def shallow(node: ast.AST, *, into: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """`node` and all below it, without entering nested scopes (but yielding their roots).

    The parts of a nested scope that run in the enclosing one (default values, decorators, the
    first iterable of a comprehension) are entered.
    """
    yield node
    if isinstance(node, _SCOPES) and not isinstance(node, into):
        for part in _outer_parts(node):
            yield from shallow(part, into=into)
        return
    for child in ast.iter_child_nodes(node):
        yield from shallow(child, into=into)


def _outer_parts(node: ast.AST) -> Iterable[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [d for d in node.args.kw_defaults if d is not None]
            return [*node.decorator_list, *node.args.defaults, *defaults]
        case ast.Lambda():
            return [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        case ast.ClassDef():
            return [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return [node.generators[0].iter]
    return []


def stored(body: Iterable[ast.AST]) -> set[str]:
    """Names that this code binds or deletes in its own scope."""
    found: set[str] = set()
    for root in body:
        for node in shallow(root):
            match node:
                case ast.Name(ctx=ast.Store() | ast.Del()):
                    found.add(node.id)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found.add(node.name)
                case ast.ExceptHandler(name=str(name)):
                    found.add(name)
                case ast.Import() | ast.ImportFrom():
                    found.update((a.asname or a.name).split(".")[0] for a in node.names)
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    found.add(name)
                case ast.MatchMapping(rest=str(name)):
                    found.add(name)
                case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                    # An assignment expression in a comprehension binds in the scope around it.
                    found.update(
                        inner.target.id
                        for inner in ast.walk(node)
                        if isinstance(inner, ast.NamedExpr)
                    )
    return found


def loaded(body: Iterable[ast.AST]) -> set[str]:
    """Names that this code, nested scopes included, may read."""
    return {
        node.id
        for root in body
        for node in ast.walk(root)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
