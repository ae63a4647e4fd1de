"""GET /v1/programs, /v1/programs/{name} and /v1/programs/{name}/graph.

What lives here: what is registered, for reading. What does not: starting runs
(`start_routes.py`).
"""

from __future__ import annotations

import inspect
from typing import Literal

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from phloem.server.http.replies import ERRORS, json_reply
from phloem.server.programs.catalog import Registered
from phloem.server.programs.dependencies import Manager
from phloem.server.programs.models import GraphReply, ProgramList, ProgramReply

__all__ = ["router"]

router = APIRouter(tags=["programs"], responses=ERRORS)


@router.get("/v1/programs")
async def list_programs(manager: Manager) -> ProgramList:
    """All registered programs, with the schemas of their arguments."""
    return ProgramList(data=[_reply(one) for one in manager.catalog])


@router.get("/v1/programs/{name}")
async def get_program(name: str, manager: Manager) -> ProgramReply:
    """One program."""
    return _reply(manager.catalog.get(name))


@router.get(
    "/v1/programs/{name}/graph",
    response_model=GraphReply,
    responses={200: {"content": {"text/plain": {}}, "description": "The state graph."}},
)
async def get_graph(
    name: str,
    manager: Manager,
    format: Literal["json", "mermaid"] = "json",  # noqa: A002
) -> Response:
    """A program's state graph, as JSON or as a Mermaid flowchart alone."""
    graph = manager.catalog.get(name).program.graph
    if format == "mermaid":
        return PlainTextResponse(graph.to_mermaid())
    reply = GraphReply(program=name, graph=graph.describe(), mermaid=graph.to_mermaid())
    return json_reply(200, reply.model_dump())


def _reply(one: Registered) -> ProgramReply:
    return ProgramReply(
        name=one.name,
        doc=inspect.getdoc(one.program.function),
        style=one.program.style,
        arguments=one.schema(),
        hash=one.hash,
    )
