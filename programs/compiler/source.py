"""A function's source: its ast, and the world it sees.

What lives here: finding the function's own ast in its file, and resolving names to objects.
What does not: any change to the code. A function whose source can't be found, or no longer
matches the code that was imported, says why, and stays opaque.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import types
from dataclasses import dataclass
from typing import Any

__all__ = ["FunctionSource", "NoSource", "read_source", "written"]


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


def written(function: types.FunctionType) -> types.CodeType:
    """The code that the user wrote: of the function that decorators have wrapped, if any."""
    code: types.CodeType = inspect.unwrap(function).__code__
    return code


def read_source(function: types.FunctionType) -> FunctionSource:
    """The ast of `function`, found by name and first line in its file.

    Raises `NoSource` if there is none, or if it is not the source of the code that runs.
    """
    code = function.__code__
    if written(function) is not code:
        raise NoSource("a decorator stands around it")
    if code.co_name == "<lambda>":
        raise NoSource("it is a lambda")
    file = code.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    if not lines:
        raise NoSource("its source is not available")
    changed = NoSource("its file has changed since it was imported")
    try:
        module, codes = _parsed("".join(lines), file)
    except SyntaxError:
        raise changed from None
    for node in ast.walk(module):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == code.co_name
            and _first_line(node) == code.co_firstlineno
        ):
            # Test runners rewrite assertions, so code with some can't be compared.
            asserts = any(isinstance(item, ast.Assert) for item in ast.walk(node))
            if not asserts and _said(code) not in codes[code.co_firstlineno]:
                break
            return FunctionSource(function, node, file)
    raise changed


@functools.lru_cache(maxsize=32)
def _parsed(text: str, file: str) -> tuple[ast.Module, dict[int, set[str]]]:
    """A module's ast, and what its functions say by first line."""
    module = ast.parse(text, file)
    codes: dict[int, set[str]] = {}
    todo = [compile(module, file, "exec", dont_inherit=True)]
    while todo:
        code = todo.pop()
        codes.setdefault(code.co_firstlineno, set()).add(_said(code))
        todo += [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return module, codes


def _said(code: types.CodeType) -> str:
    """A function's instructions with the constants and names in them, nested functions included."""
    parts = [_said(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, parts))


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])
