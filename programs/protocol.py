"""The engine seam: everything a program needs from whatever runs the model.

What lives here: the data that crosses the seam and the two protocols, `Backend` and
`Session`. What does not: any engine. The embedded engine (`runtime/embedded.py`), SGLang
(`runtime/sglang`) and the scripted fake (`programs/testing.py`) implement it, and one
conformance suite (`tests/programs/conformance`) holds them to this page.

A session is a growing sequence of tokens. Text is appended, generated or scored at its end,
never changed; that is what lets an engine keep the KV of every token it has seen.
All methods are called from one event loop; methods that are not coroutines never block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from phloem.grammar.spec import Constraint

__all__ = [
    "Backend",
    "Capabilities",
    "ChatFormat",
    "FinishReason",
    "PrefixMiss",
    "SamplingParams",
    "ScoreResult",
    "ScoredChoice",
    "Segment",
    "Session",
    "Snapshot",
    "Special",
    "StepResult",
    "Text",
    "Timing",
    "TokenEvent",
    "TokenLogprob",
    "Usage",
]


@dataclass(frozen=True, slots=True)
class Text:
    """Ordinary text. A special token spelled inside it stays ordinary text.

    Adjacent `Text` segments are tokenised as one string. `heal` permits the engine to
    re-tokenise the border between the end of this text and what is generated after it (token
    healing); chat templates set it to False. `origin` is the "file:line" that put it there.
    """

    text: str
    heal: bool = True
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Special:
    """One special token of the model, by its spelling. Only templates and programs' own
    literals make these, never values."""

    token: str
    origin: str | None = None


Segment: TypeAlias = Text | Special


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A model's chat template, cut into what goes before and after a message of each role.

    `default_system` is the system message the template inserts when there is none.
    """

    name: str
    prefix: Mapping[str, tuple[Segment, ...]]
    suffix: Mapping[str, tuple[Segment, ...]]
    default_system: str | None = None
    begin: tuple[Segment, ...] = ()
    """What opens every conversation (a begin-of-sequence token, where the model has one)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. A program that needs more is refused before it starts."""

    model: str
    """Name of the model, for people."""
    fingerprint: str
    """Identity of weights and tokenizer, for caches and for "is this the same program"."""
    max_context: int
    """Tokens a session can hold, prompt and output together."""
    constraints: frozenset[str] = frozenset()
    """Kinds of `Constraint` that are enforced."""
    score: bool = False
    logprobs: bool = False
    seed: bool = False
    fork: bool = True
    snapshot: bool = False
    vision: bool = False
    penalties: bool = True


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. The defaults are the ones of SGLang's frontend.

    `temperature` 0 is greedy; `top_k` -1 is off; `stop` texts end the step and are not part
    of its text. `seed` None draws one, which the result reports. `logprobs` is the number of
    alternatives to report for each token (0: only the chosen one's; None: none). `stream` False
    says that nobody reads the text as it comes: an engine may send it in large pieces, or whole.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    stream: bool = True


FinishReason: TypeAlias = Literal["stop", "length", "forced"]
"""stop: end of sequence, a stop text, or a complete constraint. length: `max_tokens`.
forced: `max_tokens` came near and the constraint was closed the shortest way."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token, with the best alternatives (id, text, logprob)."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Progress of a step. `text` is new text, always whole characters; it may be empty.

    `tokens` are the ids that arrived since the last event, `forced` how many of them the
    constraint dictated. `forced_spans` are the characters of `text` that these spell, as
    half-open intervals, where the engine knows them.
    """

    text: str
    tokens: tuple[int, ...] = ()
    forced: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    forced_spans: tuple[tuple[int, int], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it brings nothing: the step is accepted and waits for its turn."""
        return not (self.text or self.tokens)

    def __add__(self, later: TokenEvent) -> TokenEvent:
        """Both as one event."""
        shift = len(self.text)
        return TokenEvent(
            self.text + later.text,
            self.tokens + later.tokens,
            self.forced + later.forced,
            self.logprobs + later.logprobs,
            self.forced_spans
            + tuple((start + shift, end + shift) for start, end in later.forced_spans),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one step. prompt = reused + prefilled.

    `prompt` counts the session's tokens when the step starts, `reused` those whose KV was
    there already, `prefilled` those computed now. `generated` counts output tokens, of which
    `forced` were dictated by the constraint and `accepted` came from `drafted` guesses.
    `scored` counts rows computed for choices; they are not part of the session.
    """

    prompt: int = 0
    reused: int = 0
    prefilled: int = 0
    generated: int = 0
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    scored: int = 0

    def __add__(self, other: Usage) -> Usage:
        names = self.__slots__
        return Usage(**{n: getattr(self, n) + getattr(other, n) for n in names})


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one step, by phase. `mask` is time spent on constraint masks."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    mask_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixMiss:
    """Where a step left the cached prefix: the first prompt token that had to be computed
    although it was not new to the session, its text, and the source line that put it there."""

    position: int
    text: str
    origin: str | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of `Session.generate`; always the last item of its stream.

    `text` excludes a healed prefix and a stop text. `stop` is what ended the step: the stop
    text, or None. `tokens` are the ids generated (after the healed border). `computed_chars`
    counts the characters at the end of the prompt that were not reused, special tokens spelled
    out, where the engine knows.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing = Timing()
    stop: str | None = None
    seed: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    miss: PrefixMiss | None = None
    computed_chars: int | None = None


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """Log-probabilities of one choice's own tokens, given the session's text.

    `unconditional` holds the same for the choice with nothing before it, when asked for.
    `greedy_prefix` counts its leading tokens that the model itself would have picked; `best`
    holds, where the engine tells, the most probable token at each place and its log-probability,
    and `pieces` the text of each token, for people.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float | None, ...] = ()
    greedy_prefix: int = 0
    best: tuple[tuple[int, float], ...] = ()
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The outcome of `Session.score`, choices in the order given. `computed_chars` as in
    `StepResult`."""

    choices: tuple[ScoredChoice, ...]
    usage: Usage
    timing: Timing = Timing()
    miss: PrefixMiss | None = None
    computed_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session's state as plain values: enough to go on elsewhere, without any KV.

    `pending` is text appended but not yet tokenised; `branch` is the key of the session's
    sampling noise; `origins` maps token positions (the first of each run) to source lines.
    """

    fingerprint: str
    tokens: tuple[int, ...]
    pending: tuple[Segment, ...] = ()
    branch: str = ""
    namespace: str = ""
    origins: tuple[tuple[int, str | None], ...] = field(default=())


@runtime_checkable
class Session(Protocol):
    """One growing sequence of tokens on a backend."""

    @property
    def id(self) -> str:
        """The id it was opened with; forks append ".0", ".1", …"""
        ...

    def append(self, segments: Sequence[Segment]) -> None:
        """Put text at the end. Nothing is computed until a step needs it.

        Raises `Unsupported` for a `Special` that the model's tokenizer does not have.
        """
        ...

    def generate(
        self, params: SamplingParams, constraint: Constraint | None = None
    ) -> AsyncIterator[TokenEvent | StepResult]:
        """Generate at the end: events as tokens come, then exactly one `StepResult`.

        Closing the iterator early cancels the step; the session then ends at the last token
        that was delivered. With a constraint the text is a text of its language, or (only if
        `finish_reason` is "length") the beginning of one. The end-of-sequence token is never
        part of the session.

        Raises `PromptTooLong`, `OutOfMemory`, `Overloaded`, `DeadlineExceeded`, `Cancelled`,
        `ConstraintError`, `Unsupported`; the session is then as it was before the call.
        """
        ...

    async def score(
        self, choices: Sequence[str | tuple[int, ...]], *, empty_context: bool = False
    ) -> ScoreResult:
        """Log-probabilities of each choice as a continuation; the session does not change.

        The choice's tokens are those of the session's text and the choice tokenised as one
        (from the healed border on); a choice given as token ids is scored as it is.
        `empty_context` also scores each with nothing before it.
        """
        ...

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        """`n` sessions that go on from here and share all KV so far; this one stays usable.

        `branches` are their keys of the sampling noise, as `branch` is in `Backend.open`; by
        default each fork gets one of its own.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """The state as plain values, for `Backend.restore`."""
        ...

    def hint(self, next_use: int | None, place: str = "") -> None:
        """Steps until this session's KV is used again; None: never. Advice only.

        `place` names where in its program the session stands: an engine may learn from earlier
        runs how long sessions wait there.
        """
        ...

    async def cancel(self) -> None:
        """End the running or queued step of this session with `Cancelled`, within one step."""
        ...

    async def close(self) -> None:
        """Give up the session; its KV may stay cached for others. Safe to call twice."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Something that runs a model. Shared by all runs of a process."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def chat(self) -> ChatFormat:
        """The model's chat format. Raises `Unsupported` for a model that has none."""
        ...

    async def open(
        self,
        session_id: str,
        *,
        namespace: str = "",
        deadline: float | None = None,
        priority: int = 0,
        branch: str = "",
    ) -> Session:
        """A new, empty session.

        Sessions of different namespaces never share KV. `deadline` is a `time.monotonic()`
        instant that bounds every step. Higher `priority` is served first. `branch` keys the
        sampling noise together with the seed: equal (seed, branch, position) draw equally.
        """
        ...

    async def restore(
        self,
        snapshot: Snapshot,
        session_id: str,
        *,
        deadline: float | None = None,
        priority: int = 0,
    ) -> Session:
        """Go on from a snapshot. KV is reused where the cache still has it. The rest is as in
        `open`.

        Raises `Unsupported` if the snapshot is of another model, or has tokens that it lacks.
        """
        ...

    def count(self, text: str) -> int:
        """How many tokens `text` is, taken alone, special tokens not recognised."""
        ...

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """Compute and keep a constant prefix; returns its tokens. Pins are bounded."""
        ...

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """Compile constraints that steps will soon use, off the event loop. Advice only: one that
        can't be compiled raises at its own step."""
        ...

    async def flush_cache(self) -> None:
        """Forget all KV that no running step needs."""
        ...

    async def aclose(self) -> None:
        """Stop; running steps end with `Cancelled`."""
        ...


def describe(params: SamplingParams) -> dict[str, Any]:
    """The fields of `params` that differ from the defaults, for logs and traces."""
    default = SamplingParams()
    return {
        name: getattr(params, name)
        for name in params.__slots__
        if getattr(params, name) != getattr(default, name)
    }
