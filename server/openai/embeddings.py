"""POST /v1/embeddings.

What lives here: the endpoint and its models. What does not: the embedding model
(`retrieval/embed`). The `model` names the embedder; `usage` counts tokens as the language
model's tokenizer does, because that is what limits and bills are made of elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from phloem.errors import ConfigError, PromptTooLong
from phloem.programs.protocol import Usage
from phloem.retrieval.embed.known import DEFAULT, embedder_named
from phloem.retrieval.embed.protocol import Cutting
from phloem.server.generation.run import Account
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS, RequestError
from phloem.server.http.state import State
from phloem.server.openai.fields import Count

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, tags=["openai"], responses=ERRORS)

MAX_TEXTS = 256

Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class EmbeddingRequest(BaseModel):
    """The body. `dimensions` must be the model's own, if given."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=256)]
    input: Annotated[str, Field(min_length=1)] | Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None


class Embedding(BaseModel):
    """One vector, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, request: Request, state: State) -> EmbeddingReply:
    """Vectors of texts, as OpenAI's endpoint of this name gives them. One that is longer than the
    model reads is refused: its vector would be that of its beginning."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    if len(texts) > MAX_TEXTS:
        raise ConfigError(f"{len(texts)} texts are more than {MAX_TEXTS}", param="input")
    if body.model not in (DEFAULT, "default"):
        raise RequestError(
            404, f"there is no embedding model {body.model[:100]!r} here", code="model_not_found",
            param="model", hint=f"this server has {DEFAULT!r}",
        )  # fmt: skip
    with Account(state, "embedding", request.state.arrived) as account:
        lease = await state.gate.enter(state.settings.request_timeout_s)
        try:
            vectors = await while_connected(request, _embed(body, texts))
        finally:
            lease.release()
        tokens = await asyncio.to_thread(lambda: sum(map(state.engine.backend.count, texts)))
        account.use(Usage(prompt=tokens, prefilled=tokens))
    as_text = body.encoding_format == "base64"
    return EmbeddingReply(
        data=[
            Embedding(index=index, embedding=_base64(row) if as_text else row.tolist())
            for index, row in enumerate(vectors)
        ],
        model=DEFAULT,
        usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


async def _embed(body: EmbeddingRequest, texts: list[str]) -> Any:
    embedder = await asyncio.to_thread(embedder_named, DEFAULT)
    if body.dimensions not in (None, embedder.dims):
        raise ConfigError(f"{DEFAULT} has {embedder.dims} dimensions", param="dimensions")
    if isinstance(embedder, Cutting):
        cut = await asyncio.to_thread(embedder.first_cut, texts)
        if cut is not None:
            raise PromptTooLong(
                f"input {cut} has more than the {embedder.max_tokens} tokens that {DEFAULT} reads",
                hint="split it, and send the parts",
                param="input",
                limit=embedder.max_tokens,
            )
    return await asyncio.to_thread(embedder.embed, texts)


def _base64(row: Any) -> str:
    return base64.b64encode(np.asarray(row, dtype="<f4").tobytes()).decode()
