"""Errors of effects as plain JSON, for records: a program that handled one can be replayed.

What lives here: there and back. What does not: which errors are recorded (`record.py`).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from typing import Any

from phloem.errors import PhloemError, StepError
from phloem.programs.executor.values import show

__all__ = ["error_from_json", "error_to_json", "is_failure"]

_KEY = "$error"


def is_failure(outcome: Any) -> bool:
    """Whether a recorded outcome is an error."""
    return isinstance(outcome, dict) and _KEY in outcome


def error_to_json(error: BaseException) -> dict[str, Any]:
    """The error's class and message; of our own errors hint and details too."""
    named = {"module": type(error).__module__, "type": type(error).__name__}
    if isinstance(error, PhloemError):
        told = {"message": error.message, "hint": error.hint, "details": show(error.details)}
    else:
        told = {"message": str(error), "hint": None, "details": {}}
    return {_KEY: {**named, **told}}


def error_from_json(data: Mapping[str, Any]) -> Exception:
    """An error of the recorded class where that is known here, else a `StepError`."""
    found = data[_KEY]
    module = builtins if found["module"] == "builtins" else sys.modules.get(found["module"])
    cls = getattr(module, found["type"], None)
    message = found["message"]
    if isinstance(cls, type) and issubclass(cls, PhloemError):
        return cls(message, hint=found["hint"], **found["details"])
    if isinstance(cls, type) and issubclass(cls, Exception):
        try:
            return cls(message)
        except TypeError:  # its constructor takes something else
            pass
    return StepError(f"{found['type']}: {message}", hint="recorded; its class can't be made here")
