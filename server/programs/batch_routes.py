"""/v1/batches: JSON lines in, JSON lines out.

What lives here: the endpoints. What does not: doing the batch (`batches.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from phloem.programs.executor.record import digest
from phloem.server.http.body import parse_json
from phloem.server.http.replies import ERRORS, RequestError
from phloem.server.programs.batches import FORGOTTEN, Batch, Batches, batch_id
from phloem.server.programs.dependencies import Manager, caller_of
from phloem.server.programs.models import RunRequest
from phloem.server.programs.rows import RunRow
from phloem.server.programs.start_routes import Key, key_conflict, new_row

__all__ = ["router"]

router = APIRouter(tags=["batches"], responses=ERRORS)

MAX_LINES = 10_000

_LINES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
    }
}


class BatchReply(BaseModel):
    """A batch and how far it is."""

    id: str
    object: Literal["batch"] = "batch"
    program: str
    total: int
    counts: dict[str, int]
    """Runs by status."""
    created_at: float


async def _batches(manager: Manager) -> Batches:
    return Batches(manager)


All = Annotated[Batches, Depends(_batches)]


async def _batch(batch_id: str, request: Request, manager: Manager, batches: All) -> Batch:
    found = await asyncio.to_thread(batches.get, batch_id)
    if found is None or (manager.state.keys and found.caller != caller_of(request)):
        raise RequestError(404, "there is no such batch", code="batch_not_found", param="batch_id")
    return found


ThisBatch = Annotated[Batch, Depends(_batch)]


@router.post("/v1/batches", status_code=202, openapi_extra=_LINES)
async def start_batch(
    program: Annotated[str, Query(max_length=200)],
    request: Request,
    manager: Manager,
    batches: All,
    seed: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    key: Key = None,
) -> BatchReply:
    """Run a program for every line: a JSON object with its arguments. All lines are checked
    before any is run; the answer comes once all are on disk. The same `Idempotency-Key` never
    starts a second batch."""
    registered = manager.catalog.get(program)
    rows: list[RunRow] = []
    for number, line in enumerate((await request.body()).splitlines(), start=1):
        if line.strip():
            asked = _line(line, number, seed)
            try:
                rows.append(new_row(manager, registered, request, asked))
            except RequestError as error:
                raise _bad_line(number, error.body["message"]) from None
    # A batch whose first results are forgotten before the last are there is of no use.
    most = min(MAX_LINES, manager.runs.keep)
    if not 0 < len(rows) <= most:
        raise RequestError(
            400, f"a batch has 1 to {most} lines, not {len(rows)}", code="invalid_batch"
        )
    caller = caller_of(request)
    called = secrets.token_hex(8) if key is None else digest(caller, key)
    what = digest(program, [row.args for row in rows], seed)
    batch = Batch(batch_id(called, what), program, caller, [row.id for row in rows])
    kept = await batches.start(batch, rows)
    if kept.id != batch.id:
        raise key_conflict()
    return await _reply(kept, batches)


def _line(line: bytes, number: int, seed: int | None) -> RunRequest:
    try:
        args = parse_json(line)
    except RequestError as error:
        raise _bad_line(number, error.body["message"]) from None
    if not isinstance(args, dict):
        raise _bad_line(number, "it is not a JSON object")
    drawn = random.getrandbits(31) if seed is None else seed
    return RunRequest(args=args, background=True, seed=drawn)


def _bad_line(number: int, problem: str) -> RequestError:
    return RequestError(400, f"line {number}: {problem}", code="invalid_batch", param="body")


@router.get("/v1/batches/{batch_id}")
async def get_batch(batch: ThisBatch, batches: All) -> BatchReply:
    """How far a batch is."""
    return await _reply(batch, batches)


@router.get(
    "/v1/batches/{batch_id}/results",
    response_class=Response,
    responses={200: {"content": {"application/jsonl": {}}, "description": "A line a run."}},
)
async def get_results(batch: ThisBatch, manager: Manager) -> Response:
    """A line for every line of the batch, in its order, as far as it is. A run that is not kept
    any more is "forgotten"."""

    async def lines() -> AsyncGenerator[bytes, None]:
        for number, run in enumerate(batch.runs, start=1):
            row = await asyncio.to_thread(manager.runs.get, run)
            shown = {"line": number, "run": run} | _outcome(row)
            yield (json.dumps(shown, ensure_ascii=False) + "\n").encode()

    return StreamingResponse(lines(), media_type="application/jsonl")


def _outcome(row: RunRow | None) -> dict[str, Any]:
    if row is None:
        return {"status": FORGOTTEN, "args": None, "value": None, "error": None}
    kept = {"status", "args", "value", "error"}
    return row.reply().model_dump(include=kept)


@router.post("/v1/batches/{batch_id}/resume", status_code=202)
async def resume_batch(batch: ThisBatch, batches: All) -> BatchReply:
    """Go on with the runs of a batch that failed or were cancelled."""
    await batches.resume(batch)
    return await _reply(batch, batches)


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch: ThisBatch, batches: All) -> BatchReply:
    """End the runs of a batch that are not over."""
    await batches.cancel(batch)
    return await _reply(batch, batches)


async def _reply(batch: Batch, batches: Batches) -> BatchReply:
    counts = await asyncio.to_thread(batches.counts, batch)
    return BatchReply(
        id=batch.id,
        program=batch.program,
        total=len(batch.runs),
        counts=counts,
        created_at=batch.created_at,
    )
