"""Bodies and replies of POST /v1/completions.

What lives here: the pydantic models. What does not: the endpoint (`completions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, Strict, model_validator

from phloem.programs.protocol import Text, TokenLogprob
from phloem.server.generation.echo import Echo, PromptToken
from phloem.server.generation.job import Prompt, Tokens
from phloem.server.openai.common_reply import UsageReply
from phloem.server.openai.fields import Count, Flag, GenerateFields, TokenId, Unsupported, wrong

__all__ = [
    "CompletionChoice",
    "CompletionReply",
    "CompletionRequest",
    "completion_logprobs",
    "echo_choice",
    "untold_logprobs",
    "with_echo",
]


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
    max_tokens: TokenId | None = None
    """None is 16; 0 with `echo` only."""
    best_of: Count | None = None
    echo: Flag | None = None
    """Begin the output with the prompt, and `logprobs` with those of its tokens."""
    suffix: Unsupported = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.best_of not in (None, self.n or 1):
            raise wrong("best_of", "best_of other than n is not supported")
        if self.max_tokens == 0 and not self.echo:
            raise wrong("max_tokens", "max_tokens: 0 is only allowed with echo: true")
        if self.echo and (self.logprobs or 0) > 1:
            raise wrong("logprobs", "one alternative is known for prompts: echo takes 0 or 1")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, one or more."""
        given: list[Any] = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)
        if isinstance(given[0], int):
            given = [given]
        # An echo has told the prompt's last token: the output can't take it back.
        heal = not (self.echo and self.logprobs is not None)
        return [
            (Text(one, heal=heal),) if isinstance(one, str) else Tokens(tuple(one)) for one in given
        ]


class CompletionLogprobs(BaseModel):
    """The older form of log-probabilities: parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """Null for the first token of an echo: nothing is before it."""
    top_logprobs: list[dict[str, float] | None] | None
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


def echo_choice(index: int, echo: Echo, logprobs: int | None) -> CompletionChoice:
    """A candidate as it stands before its output: what the prompt is told back as."""
    if logprobs is None:
        return CompletionChoice(index=index, text=echo.text)
    lengths = [len(one.text) for one in echo.tokens]
    listed = CompletionLogprobs(
        tokens=[one.text for one in echo.tokens],
        token_logprobs=[one.logprob for one in echo.tokens],
        top_logprobs=[_top(one) if logprobs else {} for one in echo.tokens],
        text_offset=[0, *accumulate(lengths[:-1])],
    )
    return CompletionChoice(index=index, text=echo.text, logprobs=listed)


def _top(one: PromptToken) -> dict[str, float] | None:
    """The likeliest token and the prompt's own, as OpenAI lists them."""
    if one.best is None or one.logprob is None:
        return None
    return {one.text: one.logprob, one.best[0]: one.best[1]}


def with_echo(echo: CompletionChoice, output: CompletionChoice) -> CompletionChoice:
    """A candidate that begins with its prompt."""
    joined = output.model_copy(update={"text": echo.text + output.text})
    if echo.logprobs is not None and output.logprobs is not None:
        first, then = echo.logprobs, output.logprobs
        joined.logprobs = CompletionLogprobs(
            tokens=first.tokens + then.tokens,
            token_logprobs=first.token_logprobs + then.token_logprobs,
            top_logprobs=(first.top_logprobs or []) + (then.top_logprobs or []),
            text_offset=first.text_offset + then.text_offset,
        )
    return joined


def untold_logprobs(offset: int) -> CompletionLogprobs:
    """The entry of a token that has neither text nor a number."""
    return CompletionLogprobs(
        tokens=[""], token_logprobs=[None], top_logprobs=[None], text_offset=[offset]
    )


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
