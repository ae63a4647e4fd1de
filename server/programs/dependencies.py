"""What the program endpoints get by dependency: the manager, and runs the caller may see.

What lives here: the two dependencies. What does not: endpoints.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from phloem.server.http.replies import RequestError
from phloem.server.programs.manager import RunManager
from phloem.server.programs.rows import RunRow

__all__ = ["Manager", "ThisRun", "caller_of", "get_run"]


async def _manager(request: Request) -> RunManager:
    found: RunManager = request.app.state.manager
    return found


Manager = Annotated[RunManager, Depends(_manager)]
"""An endpoint's parameter of this type is the server's run manager."""


def caller_of(request: Request) -> str:
    """The name of the caller's key; "" on a server without keys."""
    return request.state.caller or ""


async def get_run(run_id: str, request: Request, manager: Manager) -> RunRow:
    """The run of the path. Raises 404, also for a run of another key."""
    live = manager.live.get(run_id)
    if live is not None and live.row.finished_at is not None:
        # It is being put on disk: what is shown as over can be read in full.
        await live.ended()
    row = live.row if live is not None else await asyncio.to_thread(manager.runs.get, run_id)
    if row is None or (manager.state.keys and row.caller != caller_of(request)):
        raise RequestError(404, "there is no such run", code="run_not_found", param="run_id")
    return row


ThisRun = Annotated[RunRow, Depends(get_run)]
"""An endpoint's parameter of this type is the run named by the path's `run_id`."""
