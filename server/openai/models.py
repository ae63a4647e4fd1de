"""GET /v1/models and /v1/models/{model}.

What lives here: the list of what a `model` field may name. What does not: loading models.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from phloem.server.http.replies import ERRORS
from phloem.server.http.state import State
from phloem.server.openai.names import PROGRAM, check_model, model_names, program_of
from phloem.server.programs.dependencies import Manager

__all__ = ["router"]

router = APIRouter(tags=["openai"], responses=ERRORS)


class ModelReply(BaseModel):
    """One model. `max_model_len` (as in vLLM) is its context in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "phloem"
    max_model_len: int


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


@router.get("/v1/models")
async def list_models(state: State, manager: Manager) -> ModelList:
    """What a request's `model` may be."""
    size = state.engine.backend.capabilities.max_context
    names = model_names(state) + [f"{PROGRAM}{one.name}" for one in manager.catalog]
    return ModelList(data=[ModelReply(id=name, max_model_len=size) for name in names])


@router.get("/v1/models/{model:path}")
async def get_model(model: str, state: State, manager: Manager) -> ModelReply:
    """One model by its name."""
    program = program_of(model)
    if program is None:
        check_model(state, model)
    else:
        manager.catalog.get(program)
    return ModelReply(id=model, max_model_len=state.engine.backend.capabilities.max_context)
