"""What makes two programs the same: a hash over everything a run depends on.

What lives here: `program_hash`. What does not: who compares hashes (replay, the journal).
Moving code to other lines, comments and docstrings of the module change nothing.
"""

from __future__ import annotations

import hashlib
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["program_hash"]

_LIBRARY = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib"))


def program_hash(function: types.FunctionType, prompts: Mapping[str, str], *settings: str) -> str:
    """A hash of the function's code, the helpers and texts it can reach by name, its prompts, and
    `settings` (the model's fingerprint, retrieval settings).

    Both are followed through module globals and closures, but not into installed packages.
    """
    parts = [repr(sorted(prompts.items())), *settings]
    parts += sorted(part for found in _functions(function) for part in _parts(found))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _functions(start: types.FunctionType) -> Iterator[types.FunctionType]:
    seen: set[types.CodeType] = set()
    todo = [start]
    while todo:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        yield function
        for value in _reachable(function):
            # A program or a decorated helper holds its function under this name.
            inner = getattr(value, "function", value)
            inner = getattr(inner, "__wrapped__", inner)
            if isinstance(inner, types.FunctionType) and not _installed(inner):
                todo.append(inner)


def _parts(function: types.FunctionType) -> Iterator[str]:
    """What one function says: its code, and the texts it takes from around it (a prompt may be
    a constant of the module)."""
    yield from _code(function.__code__)
    yield from (repr(value) for value in _reachable(function) if isinstance(value, str))


def _reachable(function: types.FunctionType) -> Iterator[Any]:
    for name in _names(function.__code__):
        # The likes of __file__ and __name__ are of the place, not of the program.
        if name in function.__globals__ and not name.startswith("__"):
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _installed(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    return file.startswith(_LIBRARY) or (function.__module__ or "").split(".")[0] == "phloem"


def _code(code: types.CodeType) -> Iterator[str]:
    """The code's instructions and constants, without file names and line numbers."""
    constants = [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
    yield repr((code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
