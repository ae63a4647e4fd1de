"""Fields that chat and completion requests share, strictly typed.

What lives here: the base model of both requests, and its meaning as `SamplingParams`. What
does not: prompts, constraints, replies.

The policy on fields: a field that OpenAI's API does not have and that is no extension of ours
is refused by name; a field we can't honour is refused unless it asks for nothing; fields that
are only bookkeeping (`user`, `metadata`, `store`, `service_tier`) are accepted and ignored.
Extensions have the names that vLLM and SGLang use.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from phloem.programs.protocol import SamplingParams

__all__ = [
    "Count",
    "Flag",
    "GenerateFields",
    "Number",
    "StreamOptions",
    "TokenId",
    "Unsupported",
    "sampling",
    "wrong",
]

Number = Annotated[float, Strict()]
Count = Annotated[int, Strict(), Field(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)]
Flag = Annotated[bool, Strict()]
Seed = Annotated[int, Strict(), Field(ge=-(2**63), le=2**63 - 1)]

MAX_STOPS = 4
"""OpenAI's own limit on stop texts."""


def wrong(param: str, message: str) -> PydanticCustomError:
    """The error of a field that does not go together with others."""
    return PydanticCustomError(
        "invalid_combination", "{message}", {"message": message, "param": param}
    )


def _stops(value: str | list[str] | None) -> str | list[str] | None:
    texts = [value] if isinstance(value, str) else value or []
    if len(texts) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop texts are allowed")
    if "" in texts:
        raise ValueError("a stop text can't be empty")
    return value


def _nothing(value: Any) -> Any:
    if value:
        raise ValueError("this field is not supported; leave it out")
    return value


Unsupported = Annotated[Any, AfterValidator(_nothing)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: Flag = False


class GenerateFields(BaseModel):
    """What both kinds of request may hold."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=256)]
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    n: Count | None = None
    stop: Annotated[str | list[str] | None, AfterValidator(_stops)] = None
    seed: Seed | None = None
    max_tokens: Count | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None

    # Extensions, named as in vLLM and SGLang.
    top_k: Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    min_tokens: TokenId | None = None
    ignore_eos: Flag | None = None
    stop_token_ids: list[TokenId] | None = None
    regex: str | None = None
    """The output must match this regular expression in full."""
    deadline_s: Annotated[Number, Field(ge=0.001, le=86400)] | None = None
    """Seconds from arrival within which the request must end."""

    logit_bias: Unsupported = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Flag | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "stream_options is only allowed with stream: true")
        return self


def sampling(request: GenerateFields, logprobs: int | None) -> SamplingParams:
    """The sampling parameters of a request; `max_tokens` is decided by the job."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    given: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": -1 if request.top_k == 0 else request.top_k,
        "min_p": request.min_p,
        "min_tokens": request.min_tokens,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "repetition_penalty": request.repetition_penalty,
        "ignore_eos": request.ignore_eos,
        "seed": request.seed,
    }
    return SamplingParams(
        stop=tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logprobs=logprobs,
        **{name: value for name, value in given.items() if value is not None},
    )
