"""Every error class to an HTTP status and to the OpenAI error object.

What lives here: the table and the two functions that read it. What does not: the error tree
(`phloem/errors.py`) and the handlers that send a reply (`http/replies.py`).

The object is `{"error": {message, type, param, code, ...}}`. `type` is one of OpenAI's words,
by the status; `code` is the class in snake case, so a client never needs to read the message.
Messages of foreign exceptions (a program's own `KeyError`) are the user's own and are shown;
those of phloem's inside (anything else) are not: the reply says `internal_error` and the log
has the rest.
"""

from __future__ import annotations

import re
from typing import Any

from phloem import errors as e
from phloem.errors import PhloemError, where_of
from phloem.surrogates import spelled

__all__ = ["code_of", "error_object", "outcome_of", "status_of", "status_of_code"]

STATUS: dict[type[BaseException], int] = {
    e.ConfigError: 400,
    e.CompileError: 400,
    e.TruncatedOutput: 422,
    e.StepError: 422,
    e.ToolError: 422,
    e.BudgetExceeded: 422,
    e.NonDeterminism: 409,
    e.ProgramError: 422,
    e.ConstraintError: 400,
    e.ModelNotFound: 404,
    e.ModelError: 500,
    e.Unsupported: 400,
    e.PromptTooLong: 400,
    e.OutOfMemory: 507,
    e.Overloaded: 503,
    e.DeadlineExceeded: 504,
    e.Cancelled: 499,
    e.EngineRestarted: 503,
    e.EngineUnavailable: 502,
    e.EngineError: 500,
    e.InvalidQuery: 400,
    e.IndexNotFound: 404,
    e.FieldNotFound: 400,
    e.RetrievalTimeout: 504,
    e.RetrievalUnavailable: 502,
    e.RetrievalRefused: 502,
    e.IncompatibleServer: 502,
    e.PartialResults: 502,
    e.IndexLocked: 503,
    e.RetrievalError: 502,
    e.JournalError: 500,
    e.PhloemError: 500,
}
"""The nearest class in an error's ancestry decides. 499 is nginx's "client closed request"."""

LONGEST = 10_000
"""Characters of an error's message that are told."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    422: "program_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_of(error: BaseException) -> int:
    """The HTTP status of an error. A foreign exception with a place is a program's: 422."""
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    return 422 if where_of(error) is not None else 500


def status_of_code(code: str | None) -> int:
    """The HTTP status of an error whose object is all that is left."""
    if code == "internal":
        return 500
    return next((s for cls, s in STATUS.items() if code_of(cls.__name__) == code), 422)


def outcome_of(error: BaseException) -> str:
    """How metrics count an error: "abort", "timeout", "rejected" or "error"."""
    if isinstance(error, e.Cancelled):
        return "abort"
    if isinstance(error, e.DeadlineExceeded):
        return "timeout"
    refusals = e.Overloaded | e.PromptTooLong | e.ConstraintError | e.Unsupported | e.ConfigError
    if isinstance(error, refusals):
        return "rejected"
    return "error"


def error_object(error: BaseException, *, param: str | None = None) -> dict[str, Any]:
    """The reply's body for an error; `param` names the request field at fault, where known."""
    status = status_of(error)
    if status == 500 and not isinstance(error, PhloemError):
        return _object(status, "internal error; the server's log has the details", None, "internal")
    found = _object(status, _words(error), param or _param(error), code_of(type(error).__name__))
    if isinstance(error, PhloemError):
        if error.hint:
            found["error"]["hint"] = error.hint
        if details := _plain(error.details):
            found["error"]["details"] = details
    if where := where_of(error):
        names = ("program", "node", "file", "line", "trace_id")
        found["error"]["where"] = {n: getattr(where, n) for n in names if getattr(where, n)}
    return found


def _words(error: BaseException) -> str:
    """What an error says, as any encoding can write it. A foreign one may say anything, or fail
    to."""
    name = type(error).__name__
    try:
        said = error.message if isinstance(error, PhloemError) else f"{name}: {error}"
    except Exception:  # noqa: BLE001 - code of the error's own class
        said = f"{name}, whose text can't be had"
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]}... ({len(said)} characters)"
    return spelled(said)


def _object(status: int, message: str, param: str | None, code: str) -> dict[str, Any]:
    default = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {
            "message": message,
            "type": TYPES.get(status, default),
            "param": param,
            "code": code,
        }
    }


def _param(error: BaseException) -> str | None:
    value = error.details.get("param") if isinstance(error, PhloemError) else None
    return value if isinstance(value, str) else None


def _plain(details: dict[str, Any]) -> dict[str, Any]:
    """The details that JSON can say; texts stay out, they may quote a prompt at length."""
    return {
        name: value
        for name, value in details.items()
        if name != "param"
        and (isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < 200))
    }


def code_of(name: str) -> str:
    """The code of an error class: its name in snake case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
