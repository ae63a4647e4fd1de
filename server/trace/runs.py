"""From what a server says of a run (its reply, its record, its events) to a trace.

What lives here: `run_of`. What does not: asking for it (`readers/`, `recorder/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phloem.server.trace.record import RunTrace, TraceError

__all__ = ["run_of"]

_PLAIN = (
    "program", "status", "args", "value", "variables", "text", "usage", "trace_id", "parent",
    "attempt", "seed",
)  # fmt: skip


def run_of(
    reply: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    graph: dict[str, Any] | None = None,
    mermaid: str | None = None,
    source: str | None = None,
) -> RunTrace:
    """The trace of the run that `GET /v1/runs/{id}` answers with `reply` (and its `steps`), and
    whose events (as JSON with their `type`) are `events`."""
    plain = {name: reply[name] for name in _PLAIN if reply.get(name) is not None}
    messages = reply.get("messages")
    return RunTrace(
        id=reply["id"],
        kind="run",
        started=reply["created_at"],
        finished=reply.get("finished_at"),
        messages=tuple(messages) if messages is not None else None,
        error=_error(reply, events),
        events=tuple(dict(event) for event in events),
        effects=tuple(reply.get("steps") or ()),
        graph=graph,
        mermaid=mermaid,
        source=source,
        **plain,
    )


def _error(reply: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> TraceError | None:
    """The error of the run: its event knows most, the reply has the hint."""
    told = reply.get("error")
    if told is None:
        return None
    where = told.get("where") or {}
    failures = [event for event in events if event["type"] == "run_failed"]
    failed: Mapping[str, Any] = failures[-1] if failures else {}
    kind = failed.get("error") or camel(told["code"])
    return TraceError(
        type=kind,
        # Of a program's own exception the reply's message begins with its class.
        message=told["message"].removeprefix(f"{kind}: "),
        hint=told.get("hint"),
        program=where.get("program") or reply.get("program"),
        node=failed.get("node") or where.get("node"),
        file=failed.get("file") or where.get("file"),
        line=failed.get("line") or where.get("line"),
        excerpt=tuple((number, text) for number, text in failed.get("excerpt") or ()),
        variables=failed.get("variables"),
        cause=failed.get("cause"),
    )


def camel(code: str) -> str:
    """An API error's code as the class it was made from: `key_error` is `KeyError`."""
    return "".join(part.capitalize() for part in code.split("_"))
