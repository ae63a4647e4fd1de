"""Sessions on the engine of this project, in this process or in a child.

What lives here: `EmbeddedSession`, from segments to work and from messages to results. What does
not: the backends they belong to (`embedded.py`, `host/`), the tokens' bookkeeping
(`engine/transcript.py`) and the way to the engine (`lane.py`). Nothing here needs torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence

from phloem.errors import Cancelled, EngineError
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import (
    SamplingParams,
    ScoreResult,
    Segment,
    Session,
    Snapshot,
    StepResult,
    TokenEvent,
)
from phloem.runtime.engine.messages import Failed, Generated, Message, Progress, Scored
from phloem.runtime.engine.params import check_hint, check_params
from phloem.runtime.engine.transcript import Prompt, Transcript
from phloem.runtime.engine.work import Generate, Score, Work
from phloem.runtime.lane import Cancel, Lane
from phloem.runtime.mailbox import Mailbox
from phloem.runtime.place import Place

__all__ = ["EmbeddedSession"]


class EmbeddedSession(Session):
    """See `programs.protocol.Session`. Runs one step at a time."""

    def __init__(self, lane: Lane, transcript: Transcript, place: Place, fingerprint: str) -> None:
        self._lane = lane
        self._fingerprint = fingerprint
        self.transcript = transcript
        self._place = place
        self._cancel: Cancel | None = None
        self._busy = False
        self._closed = False
        self._children = 0

    @property
    def id(self) -> str:
        """See `Session`."""
        return self._place.id

    def append(self, segments: Sequence[Segment]) -> None:
        """See `Session`."""
        self._check_open()
        self.transcript.append(segments)

    async def generate(
        self, params: SamplingParams, constraint: Constraint | None = None
    ) -> AsyncIterator[TokenEvent | StepResult]:
        """See `Session`. Raises `ConfigError` too, for a parameter out of its range."""
        check_params(params)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        with self._step():
            prompt = self.transcript.prompt()
            work = Generate(prompt.tokens, self._place, params, seed, constraint, prompt.heal)
            mailbox: Mailbox[Message] = Mailbox()
            shown: list[int] = []
            base = len(prompt.tokens)
            cancel = self._submit(work, mailbox)
            try:
                while isinstance(message := await self._message(mailbox), Progress):
                    shown += message.event.tokens
                    base = message.base
                    yield message.event
            except (GeneratorExit, asyncio.CancelledError):
                cancel()
                if shown:
                    self.transcript.settle(prompt, base, shown)
                raise
            assert isinstance(message, Generated)
            result = self._generated(prompt, message, seed)
        # Outside of the step: readers often leave the iterator here, without ending it.
        yield result

    def _generated(self, prompt: Prompt, done: Generated, seed: int) -> StepResult:
        result = StepResult(
            text=done.text,
            tokens=done.tokens,
            finish_reason=done.finish_reason,
            usage=done.usage,
            timing=done.timing,
            stop=done.stop,
            seed=seed,
            logprobs=done.logprobs,
            miss=self.transcript.miss(prompt, done.usage.reused, done.reusable),
            computed_chars=self.transcript.computed_chars(prompt, done.usage.reused),
        )
        self.transcript.settle(prompt, done.base, done.tokens)
        tokens = prompt.tokens[: done.base] + list(done.tokens)
        self.transcript.note_computed(tokens[: done.computed])
        return result

    async def score(
        self, choices: Sequence[str | tuple[int, ...]], *, empty_context: bool = False
    ) -> ScoreResult:
        """See `Session`."""
        with self._step():
            prompt = self.transcript.prompt()
            tokens, scored = self.transcript.choices(prompt, choices)
            mailbox: Mailbox[Message] = Mailbox()
            cancel = self._submit(Score(tokens, self._place, scored, empty_context), mailbox)
            try:
                message = await self._message(mailbox)
            except asyncio.CancelledError:
                cancel()
                raise
            assert isinstance(message, Scored)
            reused = message.usage.reused
            miss = self.transcript.miss(prompt, reused, len(tokens) - 1)
            self.transcript.note_computed(tokens)
            computed = self.transcript.computed_chars(prompt, reused)
            named = self.transcript.spelled(message.choices)
            return ScoreResult(named, message.usage, message.timing, miss, computed)

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        """See `Session`. Forks are numbered on over the session's life."""
        self._check_open()
        first = self._children
        self._children += n
        return [
            EmbeddedSession(self._lane.another(), self.transcript.copy(), place, self._fingerprint)
            for place in self._place.forks(first, n, branches)
        ]

    async def snapshot(self) -> Snapshot:
        """See `Session`."""
        self._check_open()
        return self.transcript.snapshot(
            self._fingerprint, self._place.branch, self._place.namespace
        )

    def hint(self, next_use: int | None, place: str = "") -> None:
        """See `Session`. Raises `ConfigError` for what is no hint."""
        check_hint(next_use, place)
        self._lane.expect(next_use, place)

    async def cancel(self) -> None:
        """See `Session`."""
        if self._cancel is not None:
            self._cancel()

    async def close(self) -> None:
        """See `Session`."""
        self._closed = True
        self._lane.expect(None)
        await self.cancel()

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        self._check_open()
        if self._busy:
            raise EngineError(
                f"session {self.id} is in a step already",
                hint="await one step before the next, or fork the session",
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._cancel = None

    def _submit(self, work: Work, mailbox: Mailbox[Message]) -> Cancel:
        self._cancel = mailbox.on_lost = cancel = self._lane.submit(work, mailbox.put)
        return cancel

    @staticmethod
    async def _message(mailbox: Mailbox[Message]) -> Message:
        message = await mailbox.get()
        if isinstance(message, Failed):
            raise message.error
        return message

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled(f"session {self.id} is closed", hint="open a new one")
