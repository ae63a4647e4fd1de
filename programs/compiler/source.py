"""A function's source: its ast, and the world it sees.

What lives here: finding the function's own ast in its file, and resolving names to objects.
What does not: any change to the code. A function whose source can't be found, or no longer
matches the code that was imported, says why, and stays opaque.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import types
from dataclasses import dataclass
from typing import Any

__all__ = ["FunctionSource", "NoSource", "read_source"]


class NoSource(Exception):
    """Why a function's source can't be used."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function and its ast, with line and column numbers of its file."""

    function: types.FunctionType
    tree: ast.FunctionDef | ast.AsyncFunctionDef
    file: str

    @property
    def locals(self) -> frozenset[str]:
        """The function's own variables, parameters included."""
        code = self.function.__code__
        return frozenset(code.co_varnames) | frozenset(code.co_cellvars)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters in order."""
        return tuple(inspect.signature(self.function).parameters)

    def resolve(self, node: ast.AST) -> Any:
        """The object that a name or dotted name stands for outside the function, or None.

        Only plain attribute access on modules and classes is followed, so nothing is run.
        """
        if isinstance(node, ast.Name):
            return self._resolve_name(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            if isinstance(owner, types.ModuleType | type):
                return inspect.getattr_static(owner, node.attr, None) or _lazy(owner, node.attr)
        return None

    def _resolve_name(self, name: str) -> Any:
        if name in self.locals:
            return None
        function = self.function
        free = function.__code__.co_freevars
        if name in free:
            cell = (function.__closure__ or ())[free.index(name)]
            try:
                return cell.cell_contents
            except ValueError:  # not bound yet
                return None
        return function.__globals__.get(name, getattr(builtins, name, None))


def _lazy(owner: Any, name: str) -> Any:
    # Modules may define attributes lazily (PEP 562), as this package's own face does.
    return getattr(owner, name, None) if isinstance(owner, types.ModuleType) else None


def read_source(function: types.FunctionType) -> FunctionSource:
    """The ast of `function`, found by name and first line in its file. Raises `NoSource`."""
    code = function.__code__
    file = code.co_filename
    lines = linecache.getlines(file, function.__globals__)
    if not lines:
        raise NoSource("its source is not available")
    try:
        module = ast.parse("".join(lines), file)
    except SyntaxError:
        raise NoSource("its file has changed since it was imported") from None
    for node in ast.walk(module):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == code.co_name
            and _first_line(node) == code.co_firstlineno
        ):
            source = FunctionSource(function, node, file)
            if _arguments(node) != code.co_varnames[: len(_arguments(node))]:
                break
            return source
    raise NoSource("its file has changed since it was imported")


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    args = node.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    rest = [item for item in (args.vararg, args.kwarg) if item is not None]
    return tuple(item.arg for item in [*named, *rest])
