"""Sessions on the embedded engine.

What lives here: `EmbeddedSession`, from segments to jobs and from messages to results. What does
not: the backend they belong to (`embedded.py`), the tokens' bookkeeping (`engine/transcript.py`)
and the work (`engine/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from phloem.errors import Cancelled, EngineError
from phloem.grammar.spec import Compiler, Constraint
from phloem.programs.protocol import (
    SamplingParams,
    ScoreResult,
    Segment,
    Session,
    Snapshot,
    StepResult,
    TokenEvent,
)
from phloem.runtime.engine.constrained import Constrained
from phloem.runtime.engine.engine import Engine
from phloem.runtime.engine.generation import Generation
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.messages import Failed, Generated, Message, Progress, Scored
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.params import check_params, make_output_text
from phloem.runtime.engine.radix_cache import Interest
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.sequence import Sequence as TokenSequence
from phloem.runtime.engine.state import EngineConfig
from phloem.runtime.engine.transcript import Prompt, Transcript
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.mailbox import Mailbox
from phloem.runtime.place import Place

__all__ = ["EmbeddedSession", "Services"]


@dataclass(frozen=True, slots=True)
class Services:
    """What all sessions of a backend share."""

    engine: Engine
    vocabulary: Vocabulary
    compiler: Compiler
    fingerprint: str
    settings: EngineConfig


class EmbeddedSession(Session):
    """See `programs.protocol.Session`. Runs one step at a time."""

    def __init__(self, services: Services, transcript: Transcript, place: Place) -> None:
        self._services = services
        self.transcript = transcript
        self._place = place
        self._job: Job | None = None
        self._busy = self._cancelling = False
        self._closed = False
        self._children = 0
        self._interest = Interest()

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
            constrained = await self._constrained(constraint)
            mailbox = Mailbox()
            job = self._generation(prompt, params, seed, constrained, mailbox)
            shown: list[int] = []
            reusable = job.reusable
            base = len(prompt.tokens)
            try:
                self._submit(job, mailbox)
                while isinstance(message := await self._message(mailbox), Progress):
                    shown += message.event.tokens
                    base = message.base
                    yield message.event
            except (GeneratorExit, asyncio.CancelledError):
                self._services.engine.cancel(job)
                if shown:
                    self.transcript.settle(prompt, base, shown)
                raise
            assert isinstance(message, Generated)
            result = self._generated(prompt, message, seed, reusable)
        # Outside of the step: readers often leave the iterator here, without ending it.
        yield result

    def _generated(self, prompt: Prompt, done: Generated, seed: int, reusable: int) -> StepResult:
        result = StepResult(
            text=done.text,
            tokens=done.tokens,
            finish_reason=done.finish_reason,
            usage=done.usage,
            timing=done.timing,
            stop=done.stop,
            seed=seed,
            logprobs=done.logprobs,
            miss=self.transcript.miss(prompt, done.usage.reused, reusable),
            computed_chars=self.transcript.computed_chars(prompt, done.usage.reused),
        )
        self.transcript.settle(prompt, done.base, done.tokens)
        tokens = prompt.tokens[: done.base] + list(done.tokens)
        self.transcript.note_computed(tokens[: done.computed])
        return result

    def _generation(
        self,
        prompt: Prompt,
        params: SamplingParams,
        seed: int,
        constrained: Constrained | None,
        mailbox: Mailbox,
    ) -> Generation:
        vocabulary = self._services.vocabulary
        tokens = prompt.tokens
        heals = prompt.heal and len(tokens) > 1 and params.max_tokens > 0
        return Generation(
            TokenSequence(self._place.namespace, list(tokens), len(tokens) - 1),
            mailbox.put,
            params=params,
            vocabulary=vocabulary,
            noise=Noise(seed, self._place.branch),
            text=make_output_text(params),
            constrained=constrained,
            border=vocabulary.table.border(tokens[-1]) if heals else None,
            jump=self._services.settings.jump_forward,
            drafts=self._services.settings.drafts,
            deadline=self._place.deadline,
            priority=self._place.priority,
            interest=self._interest,
        )

    async def _constrained(self, constraint: Constraint | None) -> Constrained | None:
        if constraint is None:
            return None
        # Compiling blocks; what is compiled already comes at once.
        matcher = await asyncio.to_thread(self._services.compiler.matcher, constraint)
        closes = constraint.finish == "force"
        return Constrained(matcher, self._services.vocabulary, closes=closes)

    async def score(
        self, choices: Sequence[str | tuple[int, ...]], *, empty_context: bool = False
    ) -> ScoreResult:
        """See `Session`."""
        with self._step():
            prompt = self.transcript.prompt()
            tokens, scored = self.transcript.choices(prompt, choices)
            mailbox = Mailbox()
            job = Scoring(
                TokenSequence(self._place.namespace, list(tokens), len(tokens) - 1),
                mailbox.put,
                choices=scored,
                bare=empty_context,
                deadline=self._place.deadline,
                priority=self._place.priority,
                interest=self._interest,
            )
            try:
                self._submit(job, mailbox)
                message = await self._message(mailbox)
            except asyncio.CancelledError:
                self._services.engine.cancel(job)
                raise
            assert isinstance(message, Scored)
            reused = message.usage.reused
            miss = self.transcript.miss(prompt, reused, len(tokens) - 1)
            self.transcript.note_computed(tokens)
            computed = self.transcript.computed_chars(prompt, reused)
            return ScoreResult(message.choices, message.usage, message.timing, miss, computed)

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        """See `Session`. Forks are numbered on over the session's life."""
        self._check_open()
        first = self._children
        self._children += n
        return [
            EmbeddedSession(self._services, self.transcript.copy(), place)
            for place in self._place.forks(first, n, branches)
        ]

    async def snapshot(self) -> Snapshot:
        """See `Session`."""
        self._check_open()
        return self.transcript.snapshot(
            self._services.fingerprint, self._place.branch, self._place.namespace
        )

    def hint(self, next_use: int | None) -> None:
        """See `Session`. Decides, with `eviction="program"`, which KV is given up first."""
        self._services.engine.expect(self._interest, next_use)

    async def cancel(self) -> None:
        """See `Session`."""
        self._cancelling = self._busy
        if self._job is not None:
            self._services.engine.cancel(self._job)

    async def close(self) -> None:
        """See `Session`."""
        self._closed = True
        self._services.engine.expect(self._interest, None)
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
            self._busy = self._cancelling = False
            self._job = None

    def _submit(self, job: Job, mailbox: Mailbox) -> None:
        if self._cancelling:  # while the constraint was compiled
            raise Cancelled("the step was cancelled")
        self._job = job
        mailbox.on_lost = lambda: self._services.engine.cancel(job)
        self._services.engine.submit(job)

    @staticmethod
    async def _message(mailbox: Mailbox) -> Message:
        message = await mailbox.get()
        if isinstance(message, Failed):
            raise message.error
        return message

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled(f"session {self.id} is closed", hint="open a new one")
