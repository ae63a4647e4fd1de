"""Bodies and replies of POST /generate.

What lives here: the pydantic models and their meaning as a `Job`. What does not: the endpoint
(`generate.py`). Names are SGLang's; unknown ones are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

from phloem.errors import ConstraintError
from phloem.grammar.spec import Analyser, Constraint
from phloem.programs.protocol import SamplingParams
from phloem.server.openai.fields import Count, Flag, Number, TokenId, wrong

__all__ = ["GenerateReply", "GenerateRequest", "MetaInfo", "Sampling"]

Texts = list[Annotated[str, Field(min_length=1)]]


class Sampling(BaseModel):
    """`sampling_params`. Some only steer detokenising, which here never shows specials."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: TokenId | None = 128
    min_new_tokens: TokenId = 0
    n: Count = 1
    stop: str | Texts | None = None
    stop_token_ids: list[TokenId] | None = None
    stop_regex: str | Texts | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)] = -1
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] = 1.0
    ignore_eos: Flag = False
    sampling_seed: TokenId | None = None
    regex: str | None = None
    json_schema: str | None = None
    skip_special_tokens: Flag = True
    spaces_between_special_tokens: Flag = True

    @model_validator(mode="after")
    def _one_constraint(self) -> Self:
        if self.regex is not None and self.json_schema is not None:
            raise wrong("regex", "regex and json_schema exclude each other")
        return self

    def params(self, logprobs: int | None) -> SamplingParams:
        """The same for the engine; `max_new_tokens` is decided by the job."""
        return SamplingParams(
            min_tokens=self.min_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=-1 if self.top_k == 0 else self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            stop=_texts(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop_regex=_texts(self.stop_regex),
            ignore_eos=self.ignore_eos,
            seed=self.sampling_seed,
            logprobs=logprobs,
        )

    def constraint(self, analyser: Analyser) -> Constraint | None:
        """The constraint. Raises `ConstraintError`, its `param` the field at fault."""
        param = "regex" if self.regex is not None else "json_schema"
        try:
            if self.regex is not None:
                return analyser.build(regex=self.regex, finish="free")
            if self.json_schema is not None:
                return analyser.build(schema=self.json_schema, finish="free")
        except ConstraintError as error:
            error.details["param"] = f"sampling_params.{param}"
            raise
        return None


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


class GenerateRequest(BaseModel):
    """The body: one text or several, all with the same sampling."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1)] | Annotated[Texts, Field(min_length=1)]
    sampling_params: Sampling = Sampling()
    return_logprob: Flag = False
    logprob_start_len: Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)] | None = None
    top_logprobs_num: Annotated[int, Strict(), Field(ge=0, le=20)] = 0
    return_text_in_logprobs: Flag = False
    stream: Flag = False
    rid: str | None = None

    @property
    def texts(self) -> list[str]:
        """The prompts."""
        return [self.text] if isinstance(self.text, str) else self.text

    @property
    def scores_only(self) -> bool:
        """Whether nothing is to be generated: SGLang's frontend scores choices so."""
        return self.sampling_params.max_new_tokens == 0


class FinishReason(BaseModel):
    """How it ended; `matched` is the stop text."""

    type: Literal["stop", "length"]
    matched: str | None = None
    length: int | None = None


class MetaInfo(BaseModel):
    """Counts of one output. Log-probabilities are [logprob, token id, text]."""

    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: list[list[Any]] | None = None
    output_token_logprobs: list[list[Any]] | None = None
    output_top_logprobs: list[list[list[Any]]] | None = None


class GenerateReply(BaseModel):
    """One output; in a stream `text` is all of it so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
