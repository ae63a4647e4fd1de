"""A scripted engine for tests: what it answers is written down beforehand.

What lives here: `ScriptedBackend`, which keeps the whole contract of `protocol.Backend`
without a model. What does not: real text. A token is a character, its id the code point;
special tokens have ids above all characters. Log-probabilities are made from a hash, the same
in every process, unless the script gives them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phloem.errors import EngineError, PromptTooLong, Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import (
    Capabilities,
    ChatFormat,
    SamplingParams,
    ScoredChoice,
    ScoreResult,
    Segment,
    Session,
    Snapshot,
    Special,
    StepResult,
    Text,
    TokenEvent,
    TokenLogprob,
    Usage,
)

__all__ = ["Call", "ScriptedBackend"]

_SPECIAL_BASE = 0x110000
_SPECIALS = ("<|im_start|>", "<|im_end|>")

Script = Callable[[str, SamplingParams, Constraint | None], str]

CHAT = ChatFormat(
    name="scripted",
    prefix={
        role: (Special("<|im_start|>"), Text(f"{role}\n", heal=False))
        for role in ("system", "user", "assistant", "tool")
    },
    suffix={
        role: (Special("<|im_end|>"), Text("\n", heal=False))
        for role in ("system", "user", "assistant", "tool")
    },
)


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of the engine: "open", "generate", "score", "fork", "hint", …"""

    kind: str
    session: str = ""
    prompt: str = ""
    params: SamplingParams | None = None
    constraint: Constraint | None = None
    data: Any = None


@dataclass
class ScriptedBackend:
    """An engine that says what it is told.

    `script` is a list of outputs, given out in order of asking; or a mapping from a piece of
    the prompt's end to the output; or a function of (prompt, params, constraint). Outputs are
    cut at stop texts and at `max_tokens` characters. `scores` maps a choice to its
    log-probability. `faults` maps the count of a step (from 0) to an exception it raises, before
    its first token, or after as many as `fault_after` says. `gate`, if given, is awaited before
    every token, so that a test decides when things happen.
    """

    script: Sequence[str] | Mapping[str, str] | Script = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    faults: Mapping[int, BaseException] = field(default_factory=dict)
    fault_after: int = 0
    gate: Callable[[], Any] | None = None
    max_context: int = 100_000
    chat_format: ChatFormat | None = CHAT
    limits: Mapping[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    steps: int = 0
    outputs: int = 0
    open_sessions: int = 0
    running: int = 0
    peak_running: int = 0

    @property
    def capabilities(self) -> Capabilities:
        """Everything but vision; `limits` replaces single fields."""
        able = Capabilities(
            model="scripted",
            fingerprint="scripted",
            max_context=self.max_context,
            constraints=frozenset(["regex", "json_schema", "choices", "lark"]),
            score=True,
            logprobs=True,
            seed=True,
            snapshot=True,
        )
        return replace(able, **self.limits)

    @property
    def chat(self) -> ChatFormat:
        """The chat format. Raises `Unsupported` if the test took it away."""
        if self.chat_format is None:
            raise Unsupported("this model has no chat format", hint="use plain text")
        return self.chat_format

    async def open(
        self,
        session_id: str,
        *,
        namespace: str = "",
        deadline: float | None = None,
        priority: int = 0,
        branch: str = "",
    ) -> Session:
        """A new session."""
        del deadline
        self.calls.append(
            Call("open", session_id, data={"namespace": namespace, "priority": priority})
        )
        return _Session(self, session_id, [], branch, namespace)

    async def restore(
        self,
        snapshot: Snapshot,
        session_id: str,
        *,
        deadline: float | None = None,
        priority: int = 0,
    ) -> Session:
        """A session with the snapshot's tokens."""
        del deadline, priority
        if snapshot.fingerprint != self.capabilities.fingerprint:
            raise Unsupported("the snapshot is of another model", hint="use that model")
        self.calls.append(Call("restore", session_id, data=len(snapshot.tokens)))
        session = _Session(
            self, session_id, list(snapshot.tokens), snapshot.branch, snapshot.namespace
        )
        session.append(snapshot.pending)
        return session

    def count(self, text: str) -> int:
        """Characters."""
        return len(text)

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """Remembers the call."""
        tokens = [token for segment in segments for token in encode(segment)]
        self.calls.append(Call("prefill", prompt=decode(tokens), data=namespace))
        return len(tokens)

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """Remembers the call."""
        self.calls.append(Call("prepare", data=tuple(constraints)))

    async def flush_cache(self) -> None:
        """Remembers the call."""
        self.calls.append(Call("flush_cache"))

    async def aclose(self) -> None:
        """Remembers the call."""
        self.calls.append(Call("aclose"))

    def prompts(self) -> list[str]:
        """The whole prompt of every generation so far."""
        return [call.prompt for call in self.calls if call.kind == "generate"]

    def answer(self, prompt: str, params: SamplingParams, constraint: Constraint | None) -> str:
        """The next output by the script."""
        index = self.outputs
        self.steps += 1
        self.outputs += 1
        if callable(self.script):
            return self.script(prompt, params, constraint)
        if isinstance(self.script, Mapping):
            for ending, output in self.script.items():
                if prompt.endswith(ending):
                    return output
            raise EngineError(f"the script has no output for {prompt[-40:]!r}")
        if index >= len(self.script):
            raise EngineError(
                f"the script has {len(self.script)} outputs, and one more is asked for"
            )
        return self.script[index]


class _Session:
    def __init__(
        self, backend: ScriptedBackend, name: str, tokens: list[int], branch: str, namespace: str
    ) -> None:
        self._backend, self._name, self._tokens = backend, name, tokens
        self._branch, self._namespace = branch, namespace
        self._cached = 0
        self._forks = 0
        self._task: asyncio.Task[Any] | None = None
        self._closed = False
        backend.open_sessions += 1

    @property
    def id(self) -> str:
        return self._name

    def append(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._tokens += encode(segment)

    async def generate(
        self, params: SamplingParams, constraint: Constraint | None = None
    ) -> AsyncIterator[TokenEvent | StepResult]:
        backend, prompt, step = self._backend, decode(self._tokens), self._backend.steps
        backend.calls.append(Call("generate", self._name, prompt, params, constraint))
        if len(self._tokens) + params.max_tokens > backend.max_context:
            raise PromptTooLong(
                f"{len(self._tokens)} + {params.max_tokens} tokens exceed {backend.max_context}",
                hint="shorten the prompt",
            )
        answer = backend.answer(prompt, params, constraint)
        fault = backend.faults.get(step)
        text, stop, reason = _cut(answer, params)
        usage = Usage(
            prompt=len(self._tokens),
            reused=self._cached,
            prefilled=len(self._tokens) - self._cached,
            generated=len(text),
        )
        backend.running += 1
        backend.peak_running = max(backend.peak_running, backend.running)
        try:
            for index, char in enumerate(text):
                if fault is not None and index == backend.fault_after:
                    raise fault
                if backend.gate is not None:
                    await backend.gate()
                self._tokens.append(ord(char))
                yield TokenEvent(char, (ord(char),))
            if fault is not None:
                raise fault
        finally:
            backend.running -= 1
        self._cached = len(self._tokens)
        logprobs = tuple(TokenLogprob(ord(char), char, _logprob(prompt, char)) for char in text)
        yield StepResult(
            text,
            tuple(map(ord, text)),
            reason,
            usage,
            stop=stop,
            seed=params.seed,
            logprobs=logprobs if params.logprobs is not None else (),
        )

    async def score(
        self, choices: Sequence[str | tuple[int, ...]], *, empty_context: bool = False
    ) -> ScoreResult:
        prompt = decode(self._tokens)
        texts = [choice if isinstance(choice, str) else decode(choice) for choice in choices]
        self._backend.calls.append(Call("score", self._name, prompt, data=tuple(texts)))
        fault = self._backend.faults.get(self._backend.steps)
        self._backend.steps += 1
        if fault is not None:
            raise fault
        scored = tuple(self._scored(prompt, choice, empty_context) for choice in texts)
        rows = sum(len(text) for text in texts)
        usage = Usage(
            prompt=len(self._tokens),
            reused=self._cached,
            prefilled=len(self._tokens) - self._cached,
            scored=rows,
        )
        self._cached = len(self._tokens)
        return ScoreResult(scored, usage)

    def _scored(self, prompt: str, choice: str, empty_context: bool) -> ScoredChoice:
        given = self._backend.scores.get(choice)
        logprobs = tuple(
            _logprob(prompt + choice[:i], char) if given is None else given / len(choice)
            for i, char in enumerate(choice)
        )
        alone: tuple[float | None, ...] = ()
        if empty_context:
            later = [_logprob(choice[:i], char) for i, char in enumerate(choice)]
            alone = (None, *later[1:]) if later else ()
        return ScoredChoice(choice, tuple(map(ord, choice)), logprobs, alone, pieces=tuple(choice))

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        self._backend.calls.append(Call("fork", self._name, data=n))
        copies: list[Session] = []
        for index in range(n):
            name = f"{self._name}.{self._forks}"
            key = name if branches is None else branches[index]
            self._forks += 1
            copy = _Session(self._backend, name, list(self._tokens), key, self._namespace)
            copy._cached = self._cached
            copies.append(copy)
        return copies

    async def snapshot(self) -> Snapshot:
        return Snapshot(
            self._backend.capabilities.fingerprint,
            tuple(self._tokens),
            branch=self._branch,
            namespace=self._namespace,
        )

    def hint(self, next_use: int | None, place: str = "") -> None:  # noqa: ARG002
        self._backend.calls.append(Call("hint", self._name, data=next_use))

    async def cancel(self) -> None:
        self._backend.calls.append(Call("cancel", self._name))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._backend.open_sessions -= 1


def encode(segment: Segment) -> list[int]:
    """A segment's token ids. Raises `Unsupported` for an unknown special token."""
    if isinstance(segment, Text):
        return [ord(char) for char in segment.text]
    if segment.token not in _SPECIALS:
        raise Unsupported(
            f"the model has no special token {segment.token!r}",
            hint=f"it has: {', '.join(_SPECIALS)}",
        )
    return [_SPECIAL_BASE + _SPECIALS.index(segment.token)]


def decode(tokens: Sequence[int]) -> str:
    """Text with special tokens spelled out in double angle brackets, unlike any text."""
    return "".join(
        f"⟪{_SPECIALS[t - _SPECIAL_BASE]}⟫" if t >= _SPECIAL_BASE else chr(t) for t in tokens
    )


def _cut(text: str, params: SamplingParams) -> tuple[str, str | None, Any]:
    found = [(text.find(stop), stop) for stop in params.stop if stop in text]
    stop = None
    if found:
        at, stop = min(found)
        text = text[:at]
    if len(text) > params.max_tokens:
        return text[: params.max_tokens], None, "length"
    return text, stop, "stop"


def _logprob(context: str, char: str) -> float:
    seed = hashlib.sha256(f"{context}\0{char}".encode("utf-8", "surrogatepass")).digest()
    return -0.1 - int.from_bytes(seed[:4]) / 2**32 * 5
