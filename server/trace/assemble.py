"""From what sinks keep to traces: exchanges and run documents of one group, put together.

What lives here: `assemble`, and the search text of a trace. What does not: where the pieces come
from (`readers/`).

A sink gets each exchange once and each run of phloem once, when it is over. So that nothing has
to be written twice, groups exist only here, when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phloem.server.trace.record import Exchange, RunTrace, Status

__all__ = ["assemble", "haystack"]

HAYSTACK = 20_000
"""Characters of a trace that can be searched where the source has no index of its own."""


def assemble(run: RunTrace | None, exchanges: Sequence[Exchange]) -> RunTrace:
    """The trace of a group. `run` is its document, if it is a run of phloem whose events were
    seen. At least one of the two is there."""
    ordered = tuple(sorted(exchanges, key=lambda one: (one.started, one.id)))
    if run is not None:
        return replace(run, exchanges=ordered)
    first = ordered[0]
    errors = [error for one in ordered for error in one.errors]
    return RunTrace(
        id=first.group,
        kind=first.group_kind,
        started=first.started,
        finished=max(one.started + one.timing.total_ms / 1000 for one in ordered),
        status=_status(ordered),
        program=next((one.program for one in ordered if one.program), None),
        trace_id=next((one.trace_id for one in ordered if one.trace_id), None),
        error=errors[-1] if errors else None,
        exchanges=ordered,
    )


def _status(exchanges: Sequence[Exchange]) -> Status:
    outcomes = {one.outcome for one in exchanges}
    if "failed" in outcomes:
        return "failed"
    return "cancelled" if "cancelled" in outcomes else "succeeded"


def haystack(run: RunTrace) -> str:
    """What a text filter looks through, in lower case."""
    parts: list[Any] = [run.id, run.trace_id, run.program, run.args, run.value, run.text]
    if run.error is not None:
        parts += [run.error.type, run.error.message, run.error.node, run.error.file]
    for one in run.exchanges:
        parts += [one.path, one.request.text, one.output]
        parts += [error.message for error in one.errors]
    parts += [
        event.get("text") or event.get("query")
        for event in run.events
        if event.get("type") in {"appended", "step_finished", "retrieved"}
    ]
    texts = (
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part is not None
    )
    return "\n".join(texts)[:HAYSTACK].lower()
