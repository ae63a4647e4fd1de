"""Bodies and replies of POST /generate.

What lives here: the pydantic models and their meaning as a `Job`. What does not: the endpoint
(`generate.py`). Names are SGLang's; unknown ones are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from phloem.errors import ConfigError, ConstraintError
from phloem.grammar.spec import Analyser, Constraint
from phloem.programs.protocol import SamplingParams, Text
from phloem.server.generation.job import Prompt, Tokens
from phloem.server.openai.common_reply import new_id
from phloem.server.openai.fields import Count, Flag, Number, TokenId, Unsupported, wrong

__all__ = ["FinishReason", "GenerateReply", "GenerateRequest", "MetaInfo", "Sampling"]

Texts = list[Annotated[str, Field(min_length=1)]]
Ids = Annotated[list[TokenId], Field(min_length=1)]
Start = Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)]


def _uniform(value: Any) -> Any:
    """One value for all prompts, or an equal one for each."""
    if not isinstance(value, list) or not value:
        return value
    if any(item != value[0] for item in value):
        raise ValueError("it differs between the prompts; send a request for each")
    return value[0]


Uniform = BeforeValidator(_uniform)


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
    ebnf: str | None = None
    """A Lark grammar, as SGLang takes it with its llguidance backend."""
    skip_special_tokens: Flag = True
    spaces_between_special_tokens: Flag = True
    stream_interval: Count | None = None
    no_stop_trim: Unsupported = None
    logit_bias: Unsupported = None
    structural_tag: Unsupported = None
    custom_params: Unsupported = None

    @model_validator(mode="after")
    def _one_constraint(self) -> Self:
        if len(self._constraints()) > 1:
            raise wrong("regex", "regex, json_schema and ebnf exclude each other")
        return self

    def _constraints(self) -> list[str]:
        return [n for n in ("regex", "json_schema", "ebnf") if getattr(self, n) is not None]

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
        for name in self._constraints():
            try:
                return analyser.build(
                    regex=self.regex, schema=self.json_schema, lark=self.ebnf, finish="free"
                )
            except ConstraintError as error:
                error.details["param"] = f"sampling_params.{name}"
                raise
        return None


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


class GenerateRequest(BaseModel):
    """The body: one prompt or several, as text or token ids, all with the same sampling."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1)] | Annotated[Texts, Field(min_length=1)] | None = None
    input_ids: Ids | Annotated[list[Ids], Field(min_length=1)] | None = None
    sampling_params: Annotated[Sampling | None, Uniform] = None
    return_logprob: Annotated[Flag, Uniform] = False
    logprob_start_len: Start | list[Start] | None = None
    token_ids_logprob: Ids | Annotated[list[Ids], Field(min_length=1)] | None = None
    """Tokens whose log-probabilities are asked for; here after the prompt only."""
    top_logprobs_num: Annotated[int, Strict(), Field(ge=0, le=20), Uniform] = 0
    return_text_in_logprobs: Flag = False
    stream: Flag = False
    rid: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    cache_salt: str | list[str] | None = None
    priority: Annotated[int, Strict(), Field(ge=-(2**31), le=2**31 - 1)] | None = None
    log_metrics: Flag | None = None
    input_embeds: Unsupported = None
    image_data: Unsupported = None
    video_data: Unsupported = None
    audio_data: Unsupported = None
    lora_path: Unsupported = None
    session_params: Unsupported = None
    custom_logit_processor: Unsupported = None
    return_hidden_states: Unsupported = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise wrong("text", "give either text or input_ids")
        starts = self.logprob_start_len
        asked = [at for at in (starts if isinstance(starts, list) else [starts]) if at is not None]
        if self.return_logprob and set(asked) - {-1} and not self.scores_only:
            raise wrong(
                "logprob_start_len",
                "log-probabilities of the prompt come without output only: send max_new_tokens: 0, "
                "and another request for the output",
            )
        if self.return_logprob and self.token_ids_logprob and not self.scores_only:
            raise wrong(
                "token_ids_logprob",
                "those of named tokens come without output only: send max_new_tokens: 0",
            )
        return self

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters."""
        return self.sampling_params or Sampling()

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts."""
        if self.input_ids is not None:
            return [Tokens(tuple(row)) for row in self.rows]
        return [(Text(text),) for text in self.texts]

    @property
    def texts(self) -> list[str]:
        """The prompts that are texts."""
        return [self.text] if isinstance(self.text, str) else self.text or []

    @property
    def rows(self) -> list[list[int]]:
        """The prompts that are ids."""
        ids: Any = self.input_ids or []
        return [ids] if ids and isinstance(ids[0], int) else ids

    @property
    def single(self) -> bool:
        """Whether the reply is one object and no list."""
        alone = isinstance(self.text, str) or bool(self.rows and self.rows[0] is self.input_ids)
        return alone and self.sampling.n == 1

    @property
    def starts(self) -> list[int]:
        """Per row, the first token whose log-probability is asked for; -1 is the last, and all of
        them the default. Raises `ConfigError`."""
        given = self.logprob_start_len
        listed = given if isinstance(given, list) else [given or 0]
        listed = listed * len(self.rows) if len(listed) == 1 else listed
        if len(listed) != len(self.rows):
            raise ConfigError(
                f"{len(listed)} positions for {len(self.rows)} prompts", param="logprob_start_len"
            )
        if any(start >= len(row) for start, row in zip(listed, self.rows, strict=True)):
            raise ConfigError("a position lies behind its prompt", param="logprob_start_len")
        return [len(row) - 1 if at < 0 else at for at, row in zip(listed, self.rows, strict=True)]

    @property
    def asked(self) -> list[list[int]]:
        """Per row, the tokens of `token_ids_logprob`. Raises `ConfigError`."""
        given: Any = self.token_ids_logprob or []
        listed = given if given and not isinstance(given[0], int) else [given] * len(self.rows)
        if len(listed) != len(self.rows):
            raise ConfigError("give a list for each prompt of ids", param="token_ids_logprob")
        return listed

    @property
    def rids(self) -> list[str]:
        """The ids that the request can be aborted by."""
        return self.rid if isinstance(self.rid, list) else [self.rid] if self.rid else []

    @property
    def cache_key(self) -> str:
        """What keeps this request's KV from that of others. Raises `ConfigError`."""
        parts = [_only(name, getattr(self, name)) for name in ("extra_key", "cache_salt")]
        return "\0".join(parts) if any(parts) else ""

    @property
    def scores_only(self) -> bool:
        """Whether nothing is to be generated: SGLang's frontend scores choices so."""
        return self.sampling.max_new_tokens == 0


def _only(name: str, value: str | list[str] | None) -> str:
    listed = {value or ""} if not isinstance(value, list) else set(value) or {""}
    if len(listed) > 1:
        raise ConfigError(
            f"{name} differs between the prompts", hint="send a request for each key", param=name
        )
    return listed.pop()


class FinishReason(BaseModel):
    """How it ended; `matched` is the stop text, `message` why it was aborted."""

    type: Literal["stop", "length", "abort"]
    matched: str | None = None
    length: int | None = None
    message: str | None = None


class MetaInfo(BaseModel):
    """Counts of one output. Log-probabilities are [logprob, token id, text]."""

    id: str = Field(default_factory=lambda: new_id("gen"))
    finish_reason: FinishReason | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    input_token_logprobs: list[list[Any]] | None = None
    input_top_logprobs: list[list[list[Any]] | None] | None = None
    output_token_logprobs: list[list[Any]] | None = None
    output_top_logprobs: list[list[list[Any]]] | None = None
    output_token_ids_logprobs: list[list[list[Any]]] | None = None


class GenerateReply(BaseModel):
    """One output; in a stream `text` is all of it so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
