"""From drafts to code: one function that holds a program's variables and returns its fragments.

What lives here: the synthesis of that factory. What does not: which fragments there are.

    def factory(_ph_t, _ph_add, _ph_next, _ph_defer, question):   # parameters are variables
        if False: docs = None                                     # so are the other locals
        def _ph_f0(): nonlocal docs; docs = ...                   # one function per node
        def _ph_f1(): return docs
        return (_ph_f0, _ph_f1)

The factory is called once per run. All fragments share its variables as cells, as one function
body shares its locals, so closures, lambdas and comprehensions see what they would have seen.
Free variables of the original function stay the very same cells. File name, line and column
numbers and the function's own name are kept, so tracebacks and debuggers show the user's code.
"""

from __future__ import annotations
import __future__

import ast
import types
from collections.abc import Callable, Sequence
from typing import Any

from phloem.programs.compiler.drafts import TEMPS, Draft
from phloem.programs.compiler.expressions import DEFER
from phloem.programs.compiler.lower import ADD, NEXT
from phloem.programs.compiler.scope import shallow, stored
from phloem.programs.compiler.source import FunctionSource

__all__ = ["is_async", "make_factory"]

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
_HELPERS = (TEMPS, ADD, NEXT, DEFER)
_FACTORY = "_ph_factory"
_FRAGMENT = "_ph_f"


def make_factory(source: FunctionSource, drafts: Sequence[Draft]) -> Callable[..., Any]:
    """The factory for the drafts' fragments: helpers, then the parameters, by position."""
    function = source.function
    declared_global = {
        name
        for node in shallow(source.tree, into=(type(source.tree),))
        if isinstance(node, ast.Global)
        for name in node.names
    }
    cells = source.locals | set(function.__code__.co_freevars)
    fragments = [_fragment(i, draft, cells, declared_global) for i, draft in enumerate(drafts)]
    body = [_declare(sorted(source.locals - set(source.parameters))), *fragments]
    body.append(
        ast.Return(ast.Tuple([ast.Name(f.name, ast.Load()) for f in fragments], ast.Load()))
    )
    factory = _function(_FACTORY, [*_HELPERS, *source.parameters], body)
    outer = _function("_ph_outer", list(function.__code__.co_freevars), [factory])
    module = ast.Module([outer], [])
    for node in ast.walk(module):
        if isinstance(node, ast.stmt | ast.expr | ast.arg) and not hasattr(node, "lineno"):
            ast.copy_location(node, source.tree)
    ast.fix_missing_locations(module)
    flags = function.__code__.co_flags & _FUTURES
    compiled = compile(module, source.file, "exec", flags=flags, dont_inherit=True)
    code = _renamed(_find(compiled, _FACTORY), function)
    bound = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(bound[name] for name in code.co_freevars)
    return types.FunctionType(code, function.__globals__, _FACTORY, None, closure)


def is_async(draft: Draft) -> bool:
    """Whether the draft's code awaits, and so must be a coroutine function."""
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    for root in draft.body:
        for node in shallow(root):
            if isinstance(node, waits):
                return True
            if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp) and any(
                isinstance(inner, ast.Await) or getattr(inner, "is_async", 0)
                for inner in ast.walk(node)
            ):
                return True
    return False


def _fragment(
    index: int, draft: Draft, cells: set[str] | frozenset[str], declared_global: set[str]
) -> ast.FunctionDef | ast.AsyncFunctionDef:
    body = [part for item in draft.body for part in _listed(_Clean().visit(item))]
    names = stored(body)
    head: list[ast.stmt] = []
    if nonlocals := sorted(names & cells - declared_global):
        head.append(ast.Nonlocal(nonlocals))
    if globals_ := sorted(names & declared_global):
        head.append(ast.Global(globals_))
    made: ast.FunctionDef | ast.AsyncFunctionDef
    made = _function(f"{_FRAGMENT}{index}", [], [*head, *(body or [ast.Pass()])])
    if is_async(draft):
        made = ast.AsyncFunctionDef(**{name: getattr(made, name) for name in made._fields})
    for node in (made, *head):
        node.lineno = node.end_lineno = draft.line
        node.col_offset = node.end_col_offset = 0
    return made


def _function(name: str, parameters: Sequence[str], body: list[Any]) -> ast.FunctionDef:
    args = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
    return ast.FunctionDef(name, args, body, [])


def _declare(names: list[str]) -> ast.stmt:
    """Make names local to the factory without binding them: they stay unbound like any local."""
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    assign: ast.stmt = ast.Assign(targets, ast.Constant(None)) if targets else ast.Pass()
    return ast.If(ast.Constant(False), [assign], [])


class _Clean(ast.NodeTransformer):
    """Removes what a fragment declares itself, and local annotations, which never run."""

    def _skip(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _skip  # noqa: N815

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _listed(found: Any) -> list[ast.stmt]:
    return found if isinstance(found, list) else [found]


def _find(code: types.CodeType, name: str) -> types.CodeType:
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            return item if item.co_name == name else _find(item, name)
    raise AssertionError(name)


def _renamed(factory: types.CodeType, function: types.FunctionType) -> types.CodeType:
    """The factory's code with its fragments named as the user's function is."""
    own = function.__code__
    constants = tuple(
        _under(item, item.co_qualname, own.co_qualname).replace(co_name=own.co_name)
        if isinstance(item, types.CodeType) and item.co_name.startswith(_FRAGMENT)
        else item
        for item in factory.co_consts
    )
    return factory.replace(co_consts=constants)


def _under(code: types.CodeType, before: str, after: str) -> types.CodeType:
    """`code`, and what is defined in it, with `after` in place of `before` in qualified names. A
    class's own is a constant of its body."""
    constants = tuple(
        _under(item, before, after)
        if isinstance(item, types.CodeType)
        else after + item.removeprefix(before)
        if isinstance(item, str) and item.startswith(before + ".")
        else item
        for item in code.co_consts
    )
    qualname = after + code.co_qualname.removeprefix(before)
    return code.replace(co_consts=constants, co_qualname=qualname)
