"""Sessions on SGLang servers.

What lives here: `SGLangSession`, from a session's tokens to requests. What does not: the backend
(`backend.py`), the choice of a server (`fleet.py`), bodies (`request.py`), answers (`reply.py`).

The servers keep no session: each step sends all tokens, and a radix cache there finds the prefix,
because they are the very ids that it computed before. So a session can go on at another server
when its own one fails: it sends its tokens there. Borders are not healed: the server can't.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from phloem.errors import (
    EngineError,
    EngineUnavailable,
    Overloaded,
    PhloemError,
    PromptTooLong,
)
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import (
    SamplingParams,
    ScoreResult,
    Segment,
    Session,
    Snapshot,
    StepResult,
    TokenEvent,
    Usage,
)
from phloem.runtime.engine.params import check_params
from phloem.runtime.engine.transcript import Prompt, Transcript
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.place import Place
from phloem.runtime.remote.checking import Checker
from phloem.runtime.remote.limits import Limit
from phloem.runtime.remote.session import RemoteSession, branch_seed
from phloem.runtime.sglang.beginning import Beginning, Lead, turn
from phloem.runtime.sglang.course import Course, Tokens
from phloem.runtime.sglang.fleet import Fleet, Server, counted
from phloem.runtime.sglang.reply import Output, check_reply
from phloem.runtime.sglang.request import constraint_fields, sampling
from phloem.runtime.sglang.scoring import Scoring
from phloem.runtime.sglang.tries import Tries

__all__ = ["SGLangSession", "Shared", "warm"]

T = TypeVar("T")

_ALIKE_FROM = 64
"""New tokens in common from which forks wait for one of them to compute these."""
_MOST_STOPS = 32
"""Stop texts that a server takes."""
_JUMP_FROM = 4
"""Tokens that a constraint dictates from which it is worth a request to put them in, for each
request that runs on the server."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a backend share. `grammar` is the servers' grammar backend."""

    fleet: Fleet
    vocabulary: Vocabulary
    tokens: Tokens
    checker: Checker
    fingerprint: str
    grammar: str
    seeds: bool
    max_context: int
    timeout: float | None

    def constraint(self, constraint: Constraint) -> dict[str, str]:
        """The constraint for the servers. Raises `Unsupported` and `ConstraintError`."""
        return constraint_fields(constraint, self.grammar, self.checker.portable)


def common(server: Server, place: Place) -> dict[str, Any]:
    """What requests of a session have in common."""
    fields: dict[str, Any] = {"extra_key": place.namespace} if place.namespace else {}
    if server.known.priorities and place.priority:
        fields["priority"] = place.priority
    return fields


async def warm(server: Server, tokens: Sequence[int], place: Place, limit: Limit) -> None:
    """Have a prefix computed and cached."""
    body = {
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        **common(server, place),
    }
    check_reply(await server.http.post("/generate", body, limit))


class SGLangSession(RemoteSession, Session):
    """See `programs.protocol.Session`. Runs one step at a time."""

    def __init__(self, shared: Shared, transcript: Transcript, place: Place) -> None:
        super().__init__(place, shared.timeout)
        self.transcript = transcript
        self._shared = shared
        self._home: Server | None = None
        """The server that holds the session's prefix."""
        self._known = 0
        """How many of the tokens it has computed."""
        self._beginnings: tuple[Beginning, ...] = ()
        """What it shares with other forks, and was not computed when it was made."""

    def append(self, segments: Sequence[Segment]) -> None:
        """See `Session`."""
        self.check_open()
        self.transcript.append(segments)

    async def generate(
        self, params: SamplingParams, constraint: Constraint | None = None
    ) -> AsyncIterator[TokenEvent | StepResult]:
        """See `Session`. Raises `ConfigError` too, for a parameter out of its range."""
        check_params(params)
        output = Output(params, self._shared.vocabulary)
        with self.step() as limit:
            prompt = self._prompt(params.max_tokens)
            course = None
            if constraint is not None:
                await limit.wait(self._shared.checker.compile(constraint))
                course = self._course(constraint)
                # Log-probabilities and penalties count what the server sees come.
                if params.logprobs is None and _resumes(params):
                    output.force(course.begin(max(0, params.max_tokens - 1)))
            seed = self._seed(params)
            shown: list[int] = []
            try:
                async with (
                    turn(self._beginnings, limit) as lead,
                    contextlib.aclosing(
                        self._events(prompt, params, seed, course, output, limit, lead)
                    ) as events,
                ):
                    async for event in events:
                        shown += event.tokens
                        yield event
            except (GeneratorExit, asyncio.CancelledError):
                if shown:
                    self.transcript.settle(prompt, len(prompt.tokens), shown)
                raise
            event, result = output.finish(len(prompt.tokens), seed)
            computed = self.transcript.computed_chars(prompt, result.usage.reused)
            result = replace(result, computed_chars=computed)
            if constraint is not None:
                self._shared.checker.check(constraint, result)
            self.transcript.settle(prompt, len(prompt.tokens), result.tokens)
            self._computed(prompt.tokens + list(result.tokens[:-1]))
        if event.text or event.tokens:
            yield event
        yield result

    async def _events(
        self,
        prompt: Prompt,
        params: SamplingParams,
        seed: int | None,
        course: Course | None,
        output: Output,
        limit: Limit,
        lead: Lead,
    ) -> AsyncGenerator[TokenEvent, None]:
        """The events of one generation, from server to server until one finishes it, and from one
        text that is put in to the next."""
        tries = Tries(self._shared.fleet, limit)
        while _lacks(output, params) or not (tries.begun or output.ended):
            server = await self._choose(prompt.tokens, tries)
            body = self._body(server, prompt, params, seed, output)
            if lead:
                _first_at_once(body)
            if course is not None:
                await self._restrict(body["sampling_params"], course, limit)
            output.begin(server.known.incremental)
            try:
                async with (
                    self._stopped(server, [body["rid"]]),
                    contextlib.aclosing(_replies(server, body, limit)) as replies,
                ):
                    async for reply in replies:
                        event = output.read(reply)
                        if lead:
                            lead.leave(computed=True)
                            self._computed(prompt.tokens)
                        if event is not None:
                            yield event
                        if output.ended and not output.finished:
                            self._shared.fleet.abort(server, [body["rid"]])
                            break
                if not (output.ended or output.finished):
                    raise EngineError(
                        "the server ended its answer without a finish_reason",
                        hint="look into the server's log",
                    )
                if course is None or not _goes_on(course, output, params):
                    return
            except (EngineUnavailable, Overloaded) as error:
                tries.failed(server, error)
                if output.came and (course is not None or not _resumes(params)):
                    raise

    def _course(self, constraint: Constraint) -> Course:
        """How the text goes. A phloem server puts in by itself what is forced on the way."""
        shared = self._shared

        def pays(text: str) -> bool:
            """A request costs a pass that all running ones wait for; each token put in saves one
            that they share."""
            others = 0 if self._home is None else self._home.running
            return len(shared.vocabulary.encode_bytes(text.encode())) >= _JUMP_FROM * (1 + others)

        return Course(
            constraint,
            shared.checker.matcher(constraint),
            shared.tokens,
            pays=None if shared.grammar == "phloem" else pays,
        )

    async def _restrict(self, fields: dict[str, Any], course: Course, limit: Limit) -> None:
        """Add to the sampling parameters what the rest of a constraint asks for.

        Raises `Unsupported` and `ConstraintError`.
        """
        assert course.rest is not None
        if course.begun:
            await limit.wait(self._shared.checker.compile(course.rest))
        fields |= self._shared.constraint(course.rest)
        stops = fields.get("stop", [])
        # Without it the server says all by itself.
        if course.stop is not None and len(stops) < _MOST_STOPS:
            fields["stop"] = [*stops, course.stop]
        if course.longest is not None:
            fields["max_new_tokens"] = min(fields["max_new_tokens"], course.longest)

    def _body(
        self,
        server: Server,
        prompt: Prompt,
        params: SamplingParams,
        seed: int | None,
        output: Output,
    ) -> dict[str, Any]:
        """A request for what `output` still lacks."""
        mixed = None if seed is None else branch_seed(self.place, seed)
        done = len(output.tokens)
        left = replace(
            params,
            max_tokens=params.max_tokens - done,
            min_tokens=max(0, params.min_tokens - done),
        )
        body: dict[str, Any] = {
            "rid": uuid.uuid4().hex,
            "input_ids": prompt.tokens + output.tokens,
            "sampling_params": sampling(left, self._shared.vocabulary.eos_ids, mixed),
            "stream": params.stream,
            **common(server, self.place),
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        return body

    def _seed(self, params: SamplingParams) -> int | None:
        """The seed that counts; None on servers that heed none."""
        if not self._shared.seeds:
            return None
        return secrets.randbits(31) if params.seed is None else params.seed

    def _prompt(self, more: int) -> Prompt:
        prompt = self.transcript.prompt()
        size, limit = len(prompt.tokens), self._shared.max_context
        if size + more > limit:
            raise PromptTooLong(
                f"{size} tokens and {more} to come exceed the server's {limit}",
                hint="shorten the prompt, lower max_tokens, or start it with --context-length",
            )
        return prompt

    async def score(
        self, choices: Sequence[str | tuple[int, ...]], *, empty_context: bool = False
    ) -> ScoreResult:
        """See `Session`. One request holds all."""
        with self.step() as limit:
            prompt = self._prompt(0)
            tokens, parts = self.transcript.choices(prompt, choices)
            scoring = Scoring(tokens, parts, bare=empty_context)

            async def ask(server: Server) -> Any:
                body = {
                    "rid": [uuid.uuid4().hex for _ in range(scoring.rows)],
                    **scoring.fields(),
                    **common(server, self.place),
                }
                if self.place.namespace:
                    body["extra_key"] = [self.place.namespace] * scoring.rows
                async with self._stopped(server, body["rid"]):
                    return await server.http.post("/generate", body, limit)

            replies = []
            if scoring.rows:
                async with turn(self._beginnings, limit) as lead:
                    replies = await self._anywhere(tokens, ask, limit)
                    lead.leave(computed=True)
            read, reused = scoring.read(replies)
            usage = Usage(
                prompt=len(tokens),
                reused=reused,
                prefilled=len(tokens) - reused,
                scored=scoring.computed,
            )
            self._computed(tokens)
            return ScoreResult(self.transcript.spelled(read), usage)

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        """See `Session`. What is new and long is computed once, not by every fork."""
        places = self.children(n, branches)
        tokens = self.transcript.prompt().tokens if n > 1 else []
        elsewhere = self._shared.fleet.computed(tokens, self.place.namespace, self._home)
        beginnings = tuple(one for one in self._beginnings if not one.computed)
        if len(tokens) - max(self._known, elsewhere) >= _ALIKE_FROM:
            beginnings = (*beginnings, Beginning())
        forks: list[Session] = []
        for place in places:
            fork = SGLangSession(self._shared, self.transcript.copy(), place)
            fork._home, fork._known, fork._beginnings = self._home, self._known, beginnings
            forks.append(fork)
        return forks

    async def snapshot(self) -> Snapshot:
        """See `Session`."""
        self.check_open()
        return self.transcript.snapshot(
            self._shared.fingerprint, self.place.branch, self.place.namespace
        )

    async def _anywhere(
        self, tokens: list[int], ask: Callable[[Server], Awaitable[T]], limit: Limit
    ) -> T:
        """What `ask` answers, at the session's server or, where that fails, at others."""
        tries = Tries(self._shared.fleet, limit)
        while True:
            server = await self._choose(tokens, tries)
            try:
                with counted(server):
                    return await ask(server)
            except (EngineUnavailable, Overloaded) as error:
                tries.failed(server, error)

    async def _choose(self, tokens: list[int], tries: Tries) -> Server:
        server = await tries.next(tokens, self.place.namespace, self._home)
        if server is not self._home:
            self._home, self._known = server, 0
        return server

    def _computed(self, tokens: list[int]) -> None:
        """The session's server has computed these tokens."""
        self._known = len(tokens)
        if self._home is not None:
            self._home.remember(self._shared.fleet.keys(tokens, self.place.namespace))

    @contextlib.asynccontextmanager
    async def _stopped(self, server: Server, rids: Sequence[str]) -> AsyncIterator[None]:
        """Requests at a server, which is told to stop them if they are given up here, for whatever
        reason but its own end or its refusal."""
        try:
            yield
        except EngineUnavailable:
            raise
        except BaseException as error:
            if not isinstance(error, PhloemError) or "status" not in error.details:
                self._shared.fleet.abort(server, rids)
            raise


async def _replies(server: Server, body: dict[str, Any], limit: Limit) -> AsyncGenerator[Any, None]:
    """The events of a stream, or the one answer: a token that is sent alone costs the server as
    much as a tenth of a step."""
    with counted(server):
        if not body["stream"]:
            yield await server.http.post("/generate", body, limit)
            return
        events = server.http.stream("/generate", body, limit)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event


def _first_at_once(body: dict[str, Any]) -> None:
    """Have the first token told as soon as it is there; the others, if nobody reads them as they
    come, together at the end."""
    tokens = body["sampling_params"]["max_new_tokens"]
    if tokens > 1 and not body["stream"]:
        body["stream"] = True
        body["sampling_params"]["stream_interval"] = tokens


def _goes_on(course: Course, output: Output, params: SamplingParams) -> bool:
    """Whether the text goes on after what a server has said; what is forced there is put in."""
    if output.paused(course.stop):
        output.resume()
        output.force(course.go_on(output.came, params.max_tokens - len(output.tokens)))
        if course.rest is None and not output.ended:
            output.complete()
        return not output.finished and _lacks(output, params)
    if output.cut and course.longest is not None:
        output.complete()
    return False


def _lacks(output: Output, params: SamplingParams) -> bool:
    return not output.ended and len(output.tokens) < params.max_tokens


def _resumes(params: SamplingParams) -> bool:
    """Whether output can go on from its tokens alone: penalties count from where it began."""
    return (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (
        0, 0, 1,
    )  # fmt: skip
