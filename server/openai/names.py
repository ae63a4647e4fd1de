"""Which model names requests may use.

What lives here: the names and their check. What does not: the endpoint that lists them.
"""

from __future__ import annotations

from phloem.server.http.replies import RequestError
from phloem.server.http.state import ServerState

__all__ = ["PROGRAM", "check_model", "model_names", "program_of"]


PROGRAM = "program:"
"""A model name `program:NAME` runs a program behind the chat endpoint."""

PLACEHOLDERS = ("default", "dummy")
"""Names for clients that must send one and know none; huggingface_hub sends "dummy"."""


def model_names(state: ServerState) -> list[str]:
    """The names that are listed."""
    return [state.engine.backend.capabilities.model]


def program_of(name: str) -> str | None:
    """The program that a model name stands for, or None."""
    prefix, found, program = name.partition(PROGRAM)
    return program if found and not prefix else None


def check_model(state: ServerState, name: str) -> None:
    """Raise 404 unless `name` is the model that is loaded, or stands for whichever is."""
    names = model_names(state)
    if name not in names and name not in PLACEHOLDERS:
        raise RequestError(
            404,
            f"there is no model {name[:100]!r} here",
            code="model_not_found",
            param="model",
            hint=f"this server has {names[0]!r}",
        )
