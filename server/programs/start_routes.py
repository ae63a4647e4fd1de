"""POST /v1/programs/{name}/runs.

What lives here: starting a run in its three ways: waited for, streamed, in the background. What
does not: what happens to it then (`manager.py`), and looking at runs (`run_routes.py`).

A run that is waited for or streamed ends with its client, unless it is in the background.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import Cancelled, EngineRestarted, JournalError, Overloaded
from phloem.programs.executor.record import digest
from phloem.server.error_map import code_of, status_of_code
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS, RequestError, error_reply, json_reply
from phloem.server.http.trace_context import current_trace
from phloem.server.journal.recording import StoredEffect
from phloem.server.programs.catalog import Registered
from phloem.server.programs.dependencies import Manager, caller_of
from phloem.server.programs.events import event_stream
from phloem.server.programs.live import LiveRun
from phloem.server.programs.manager import RunManager
from phloem.server.programs.models import RunReply, RunRequest
from phloem.server.programs.rows import RunRow

__all__ = [
    "RUN_REPLIES",
    "Key",
    "answer",
    "key_conflict",
    "new_row",
    "router",
    "start_once",
]

router = APIRouter(tags=["programs"], responses=ERRORS, route_class=StrictRoute)

Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
"""What a client calls a request that it may send twice."""

_PASSING = frozenset({code_of(Overloaded.__name__), code_of(EngineRestarted.__name__)})
"""Errors that say nothing of the run."""

RUN_REPLIES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": RunReply,
        "description": "The run is over, or its events.",
        "content": {"text/event-stream": {}},
    },
    202: {"model": RunReply, "description": "The run is on disk and goes on."},
}


@router.post("/v1/programs/{name}/runs", response_model=RunReply, responses=RUN_REPLIES)
async def start_run(
    name: str, body: RunRequest, request: Request, manager: Manager, key: Key = None
) -> Response:
    """Run a program. The same `Idempotency-Key` never starts a second run."""
    row = new_row(manager, manager.catalog.get(name), request, body)
    asked = digest(name, body.model_dump(mode="json"))
    return await start_once(row, request, manager, key, asked, stream=body.stream)


async def start_once(
    row: RunRow,
    request: Request,
    manager: RunManager,
    key: str | None,
    asked: str,
    *,
    stream: bool,
    effects: Sequence[StoredEffect] = (),
) -> Response:
    """Start a run and answer, or answer with the run that its caller has started with this key.
    `asked` is a digest of the request, which has to be the same one."""
    row.idempotency_key, row.request_digest = key, asked
    known = None
    if key is not None:
        known = await asyncio.to_thread(manager.runs.by_key, row.caller, key)
    if known is not None:
        return await _again(known, row, request, manager, stream=stream)
    try:
        live = await manager.start(manager.catalog.get(row.program), row, effects)
    except JournalError:
        # Two requests with one key came at once, and the other was first.
        first = await asyncio.to_thread(manager.runs.by_key, row.caller, key or "")
        if first is None:
            raise
        return await _again(first, row, request, manager, stream=stream)
    return await answer(live, request, manager, stream=stream, background=row.background)


def new_row(
    manager: RunManager, registered: Registered, request: Request, body: RunRequest
) -> RunRow:
    """The row of a run that is about to start. Raises 400 for bad arguments."""
    registered.parse(body.args)
    trace = current_trace.get()
    return RunRow(
        id=f"run_{secrets.token_hex(12)}",
        program=registered.name,
        program_hash=registered.hash,
        graph=registered.program.graph.describe(),
        fingerprint=manager.state.engine.backend.capabilities.fingerprint,
        args=body.args,
        options={"deadline_s": body.deadline_s, "token_budget": body.token_budget},
        seed=random.getrandbits(31) if body.seed is None else body.seed,
        background=body.background,
        caller=caller_of(request),
        trace_id=trace.trace_id if trace else secrets.token_hex(16),
    )


async def answer(
    live: LiveRun, request: Request, manager: RunManager, *, stream: bool, background: bool
) -> Response:
    """The reply to whoever started a run."""
    headers = {"x-run-id": live.row.id}
    if stream:
        return event_stream(live, manager, 0, owned=not background)
    if background:
        headers["location"] = f"/v1/runs/{live.row.id}"
        return json_reply(202, live.row.reply().model_dump(), headers)
    try:
        await while_connected(request, live.ended())
    except Cancelled:
        live.cancel("reader")
        raise
    if live.error is not None:
        reply = error_reply(live.error)
        reply.headers.update(headers)
        return reply
    return json_reply(200, live.row.reply().model_dump(), headers)


def key_conflict() -> RequestError:
    """The error for a key that comes again with something else."""
    return RequestError(
        409,
        "this Idempotency-Key was used for another request",
        code="idempotency_conflict",
        param="Idempotency-Key",
        hint="send a new key with another request",
    )


async def _again(
    known: RunRow, row: RunRow, request: Request, manager: RunManager, *, stream: bool
) -> Response:
    """The reply for an idempotency key that was used before."""
    if known.request_digest != row.request_digest:
        raise key_conflict()
    live = manager.live.get(known.id)
    if live is None and _may_go_on(known):
        live = await manager.resume(known)
    if live is not None:
        return await answer(live, request, manager, stream=stream, background=row.background)
    if stream:
        return event_stream(await manager.told(known), manager, 0, owned=False)
    headers = {"x-run-id": known.id}
    if known.error is not None and not row.background:
        return json_reply(status_of_code(known.error.get("code")), {"error": known.error}, headers)
    return json_reply(202 if row.background else 200, known.reply().model_dump(), headers)


def _may_go_on(known: RunRow) -> bool:
    """Whether what ended the run was not its own: who sends its request again means it to go on."""
    error = known.error or {}
    gone = known.status == "cancelled" and "reader_gone" in error.get("details", {})
    return gone or known.status == "interrupted" or error.get("code") in _PASSING
