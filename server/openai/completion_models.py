"""Bodies and replies of POST /v1/completions.

What lives here: the pydantic models. What does not: the endpoint (`completions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, Strict, model_validator

from phloem.programs.protocol import Text, TokenLogprob
from phloem.server.generation.job import Prompt, Tokens
from phloem.server.openai.common_reply import UsageReply
from phloem.server.openai.fields import Count, GenerateFields, TokenId, Unsupported, wrong

__all__ = ["CompletionChoice", "CompletionReply", "CompletionRequest", "completion_logprobs"]


Ids = Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(GenerateFields):
    """The body. A prompt is a text or the ids of its tokens; there may be several."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1)]
    )
    logprobs: Annotated[int, Strict(), Field(ge=0, le=20)] | None = None
    best_of: Count | None = None
    echo: Unsupported = None
    suffix: Unsupported = None

    @model_validator(mode="after")
    def _best_of_is_n(self) -> Self:
        if self.best_of not in (None, self.n or 1):
            raise wrong("best_of", "best_of other than n is not supported")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, one or more."""
        given: list[Any] = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)
        if isinstance(given[0], int):
            given = [given]
        return [(Text(one),) if isinstance(one, str) else Tokens(tuple(one)) for one in given]


class CompletionLogprobs(BaseModel):
    """The older form of log-probabilities: parallel lists."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One candidate, whole or (in a stream) a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class CompletionReply(BaseModel):
    """The reply, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply | None = None
    system_fingerprint: str | None = None


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    """Log-probabilities of tokens whose text begins `offset` characters into the output."""
    offsets = []
    for one in tokens:
        offsets.append(offset)
        offset += len(one.text)
    return CompletionLogprobs(
        tokens=[one.text for one in tokens],
        token_logprobs=[one.logprob for one in tokens],
        top_logprobs=[{text: logprob for _, text, logprob in one.top} for one in tokens],
        text_offset=offsets,
    )
