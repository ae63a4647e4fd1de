"""What a run tells of its program where it stands: variables, the source, the cause of an error.

What lives here: looking at them. What does not: when they are told (the first two only in runs
with `trace_values=True`) and how values are cut (`glance.py`).
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Iterable, Mapping
from typing import Any

from phloem.programs.executor.frame import Handle
from phloem.programs.executor.glance import glance

__all__ = ["cause_of", "excerpt", "locals_of", "variables"]

AROUND = 6
"""Source lines shown before and after the one that is meant."""
_NO_VALUES = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, Handle)


def variables(cells: Mapping[str, types.CellType], names: Iterable[str]) -> dict[str, Any]:
    """A glance at those of `names` that have a value now."""
    found = {}
    for name in names:
        try:
            value = cells[name].cell_contents
        except (KeyError, ValueError):  # not a variable of the program, or not set
            continue
        if not name.startswith("_ph_") and not isinstance(value, _NO_VALUES):
            found[name] = glance(value)
    return found


def locals_of(error: BaseException, file: str | None) -> dict[str, Any]:
    """A glance at the variables of the last function in `file` that the error came through."""
    values: Mapping[str, Any] = {}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            values = trace.tb_frame.f_locals
        trace = trace.tb_next
    return {
        name: glance(value)
        for name, value in values.items()
        if not name.startswith("_ph_") and not isinstance(value, _NO_VALUES)
    }


def excerpt(file: str | None, line: int | None) -> tuple[tuple[int, str], ...]:
    """The source lines around `line`, each with its number; none if there is no source."""
    if file is None or line is None:
        return ()
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    first = max(1, line - AROUND)
    shown = lines[first - 1 : line + AROUND]
    return tuple((first + at, text.rstrip("\r\n")) for at, text in enumerate(shown))


def cause_of(error: BaseException) -> str | None:
    """Type and message of the error that this one was raised from."""
    cause = error.__cause__
    return None if cause is None else f"{type(cause).__name__}: {cause}"
