"""POST /v1/graphs/runs: run a graph that the request brings along.

What lives here: the endpoint. What does not: the graph's form (`graph_models.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import ConstraintError
from phloem.grammar.spec import Analyser
from phloem.programs.executor.record import digest
from phloem.server.http.body import StrictRoute
from phloem.server.http.replies import ERRORS
from phloem.server.programs.dependencies import Manager
from phloem.server.programs.graph_models import GenNode, GraphSpec
from phloem.server.programs.graph_program import NAME
from phloem.server.programs.models import RunOptions, RunReply, RunRequest
from phloem.server.programs.start_routes import RUN_REPLIES, Key, new_row, start_once

__all__ = ["router"]

router = APIRouter(tags=["programs"], responses=ERRORS, route_class=StrictRoute)


class GraphRunRequest(RunOptions):
    """A graph, its variables, and how to run it."""

    graph: GraphSpec
    args: dict[str, Any] = Field(default_factory=dict)
    stream: bool = Field(False, strict=True)
    background: bool = Field(False, strict=True)


@router.post("/v1/graphs/runs", response_model=RunReply, responses=RUN_REPLIES)
async def run_graph(
    body: GraphRunRequest, request: Request, manager: Manager, key: Key = None
) -> Response:
    """Run a graph of steps and branches; without Python, so anybody may send one."""
    registered = manager.catalog.get(NAME)
    await asyncio.to_thread(_check_constraints, manager.state.analyser, body.graph)
    graph = body.graph.model_dump(exclude_unset=True)
    asked = RunRequest(
        args={"graph": graph, "args": body.args},
        **body.model_dump(include=set(RunOptions.model_fields) | {"stream", "background"}),
    )
    row = new_row(manager, registered, request, asked)
    whole = digest("a graph", body.model_dump(mode="json"))
    return await start_once(row, request, manager, key, whole, stream=body.stream)


def _check_constraints(analyser: Analyser, graph: GraphSpec) -> None:
    """Raise `ConstraintError`, naming the node, for what could not be enforced."""
    for name, node in graph.nodes.items():
        if not isinstance(node, GenNode):
            continue
        try:
            if node.regex is not None:
                analyser.build(regex=node.regex)
            if node.json_schema is not None:
                analyser.build(schema=node.json_schema)
        except ConstraintError as error:
            error.details["param"] = f"graph.nodes.{name}"
            raise
