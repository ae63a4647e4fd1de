"""/v1/runs: list, look, follow, cancel, resume, rewind, delete.

What lives here: the endpoints for runs that exist. What does not: starting one
(`start_routes.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from phloem.programs.executor.record import digest
from phloem.server.http.body import StrictRoute
from phloem.server.http.replies import ERRORS, RequestError, json_reply
from phloem.server.journal.recording import StoredEffect, read_effects
from phloem.server.programs.dependencies import Manager, ThisRun, caller_of
from phloem.server.programs.events import event_stream, first_event
from phloem.server.programs.models import (
    ResumeRequest,
    RewindRequest,
    RunDetail,
    RunList,
    RunReply,
    RunStatus,
    StepReply,
)
from phloem.server.programs.rewind import rewound
from phloem.server.programs.rows import RunRow
from phloem.server.programs.start_routes import RUN_REPLIES, Key, start_once
from phloem.server.trace.paging import cursor_of, parse_cursor

__all__ = ["router"]

router = APIRouter(tags=["runs"], responses=ERRORS, route_class=StrictRoute)

LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]


@router.get("/v1/runs")
async def list_runs(
    request: Request,
    manager: Manager,
    program: Annotated[str | None, Query(max_length=200)] = None,
    status: RunStatus | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> RunList:
    """Runs, newest first, a page at a time."""
    filters = {"program": program, "status": status}
    if manager.state.keys:
        filters["caller"] = caller_of(request)
    after = None if cursor is None else parse_cursor(cursor)
    rows = await asyncio.to_thread(manager.runs.page, filters, limit, after)
    shown = [manager.live[row.id].row if row.id in manager.live else row for row in rows]
    last = rows[-1] if len(rows) == limit else None
    following = None if last is None else cursor_of(last.created_at, last.id)
    return RunList(data=[row.reply() for row in shown], next=following)


@router.get("/v1/runs/{run_id}")
async def get_run(row: ThisRun, manager: Manager) -> RunDetail:
    """A run with its record, effect by effect."""
    # Before its effects are read: what is shown as over has them all.
    reply = row.reply()
    effects = await asyncio.to_thread(read_effects, manager.runs.store, row.id)
    return RunDetail(**reply.model_dump(), steps=[_step(effect) for effect in effects])


def _step(effect: StoredEffect) -> StepReply:
    entry = effect.entry or {}
    known = {name: entry.get(name) for name in ("kind", "name", "node", "line", "outcome")}
    return StepReply(path=effect.path, seq=effect.seq, **known)


@router.get(
    "/v1/runs/{run_id}/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "The events."}},
)
async def get_events(row: ThisRun, manager: Manager, last_event_id: LastEventId = None) -> Response:
    """A run's events, those to come included; `Last-Event-ID` continues a broken stream."""
    live = await manager.told(row)
    return event_stream(live, manager, first_event(last_event_id, live), owned=False)


@router.post("/v1/runs/{run_id}/cancel")
async def cancel_run(row: ThisRun, manager: Manager) -> RunReply:
    """End a run early; one that is over stays as it is."""
    await manager.cancel(row.id)
    found = await asyncio.to_thread(manager.runs.get, row.id)
    return (found or row).reply()


@router.post("/v1/runs/{run_id}/resume", response_model=RunReply, responses=RUN_REPLIES)
async def resume_run(body: ResumeRequest, row: ThisRun, manager: Manager) -> Response:
    """Go on with a run that was interrupted or failed, from its last recorded effect."""
    if row.id in manager.live or row.status in {"succeeded", "stale"}:
        raise RequestError(
            409,
            f"the run is {row.status}",
            code="not_resumable",
            hint="runs that failed, were cancelled or were interrupted go on; "
            "rewind repeats one from a step",
        )
    row.background = True
    live = await manager.resume(row, repeat_unfinished=body.repeat_unfinished)
    return json_reply(202, live.row.reply().model_dump(), {"x-run-id": row.id})


@router.post("/v1/runs/{run_id}/rewind", response_model=RunReply, responses=RUN_REPLIES)
async def rewind_run(
    body: RewindRequest, row: ThisRun, request: Request, manager: Manager, key: Key = None
) -> Response:
    """Start a new run that repeats this one up to a step, and goes on from there anew."""
    effects = await asyncio.to_thread(read_effects, manager.runs.store, row.id)
    kept = rewound(effects, body)
    different = manager.differences(row)
    if different:
        raise RequestError(409, f"the run can't be repeated: {'; '.join(different)}", code="stale")
    fresh = RunRow(
        id=f"run_{secrets.token_hex(12)}",
        parent=row.id,
        background=not body.stream,
        **{
            name: getattr(row, name)
            for name in (
                "program", "program_hash", "graph", "fingerprint", "args", "options", "seed",
                "caller", "trace_id",
            )
        },
    )  # fmt: skip
    asked = digest("a rewind of", row.id, body.model_dump(mode="json"))
    return await start_once(fresh, request, manager, key, asked, stream=body.stream, effects=kept)


@router.delete("/v1/runs/{run_id}", status_code=204)
async def delete_run(row: ThisRun, manager: Manager) -> None:
    """Forget a run; one that is not over is cancelled first."""
    await manager.cancel(row.id)
    await asyncio.wrap_future(manager.runs.delete(row.id))
