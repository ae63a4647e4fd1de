"""Sessions on an SGLang server.

What lives here: `SGLangSession`, from a session's tokens to requests. What does not: the backend
(`backend.py`), bodies (`request.py`) and answers (`reply.py`).

The server keeps no session: each step sends all tokens, and its radix cache finds the prefix,
because they are the very ids that it computed before. Borders are not healed: the server can't.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phloem.errors import Cancelled, DeadlineExceeded, PromptTooLong
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
from phloem.runtime.remote.http import HttpClient
from phloem.runtime.remote.limits import Limit
from phloem.runtime.remote.session import RemoteSession, branch_seed
from phloem.runtime.sglang.reply import Output, check_reply, read_scores
from phloem.runtime.sglang.request import constraint_fields, sampling
from phloem.runtime.sglang.server_info import ServerInfo

__all__ = ["SGLangSession", "Server"]

_WARM_FROM = 64
"""New tokens from which a prefix is worth a request of its own before it is forked."""


@dataclass(frozen=True, slots=True)
class Server:
    """What all sessions of a backend share. `abort(rids)` does not wait for the answer."""

    http: HttpClient
    info: ServerInfo
    vocabulary: Vocabulary
    checker: Checker
    fingerprint: str
    timeout: float | None
    abort: Callable[[Sequence[str]], None]

    def common(self, place: Place) -> dict[str, Any]:
        """What requests of a session have in common."""
        fields: dict[str, Any] = {"extra_key": place.namespace} if place.namespace else {}
        if self.info.priorities and place.priority:
            fields["priority"] = place.priority
        return fields

    async def warm(self, tokens: Sequence[int], place: Place, limit: Limit) -> None:
        """Have a prefix computed and cached."""
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            **self.common(place),
        }
        check_reply(await self.http.post("/generate", body, limit))


class SGLangSession(RemoteSession, Session):
    """See `programs.protocol.Session`. Runs one step at a time."""

    def __init__(self, server: Server, transcript: Transcript, place: Place) -> None:
        super().__init__(place, server.timeout)
        self.transcript = transcript
        self._server = server
        self._known = 0
        """How many of the tokens the server has computed."""

    def append(self, segments: Sequence[Segment]) -> None:
        """See `Session`."""
        self.check_open()
        self.transcript.append(segments)

    async def generate(
        self, params: SamplingParams, constraint: Constraint | None = None
    ) -> AsyncIterator[TokenEvent | StepResult]:
        """See `Session`. Raises `ConfigError` too, for a parameter out of its range."""
        check_params(params)
        output = Output(params, self._server.vocabulary, self._server.info.incremental)
        with self.step() as limit:
            prompt = self._prompt(params.max_tokens)
            if constraint is not None:
                constraint_fields(constraint)
                await limit.wait(self._server.checker.compile(constraint))
            seed = self._seed(params)
            shown: list[int] = []
            body = self._body(prompt, params, seed, constraint)
            replies = self._server.http.stream("/generate", body, limit)
            try:
                async with _aborting(self._server, [body["rid"]], replies):
                    async for reply in replies:
                        event = output.read(reply)
                        if event is not None:
                            shown += event.tokens
                            yield event
                        if output.ended and not output.finished:
                            self._server.abort([body["rid"]])
                            break
            except (GeneratorExit, asyncio.CancelledError):
                if shown:
                    self.transcript.settle(prompt, len(prompt.tokens), shown)
                raise
            event, result = output.finish(len(prompt.tokens), seed)
            computed = self.transcript.computed_chars(prompt, result.usage.reused)
            result = replace(result, computed_chars=computed)
            if constraint is not None:
                self._server.checker.check(constraint, result)
            self.transcript.settle(prompt, len(prompt.tokens), result.tokens)
            self._known = len(prompt.tokens) + max(0, len(result.tokens) - 1)
        if event.text or event.tokens:
            yield event
        yield result

    def _body(
        self,
        prompt: Prompt,
        params: SamplingParams,
        seed: int | None,
        constraint: Constraint | None,
    ) -> dict[str, Any]:
        mixed = None if seed is None else branch_seed(self.place, seed)
        ends = self._server.vocabulary.eos_ids
        body: dict[str, Any] = {
            "rid": uuid.uuid4().hex,
            "input_ids": prompt.tokens,
            "sampling_params": sampling(params, ends, mixed, constraint),
            "stream": True,
            **self._server.common(self.place),
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        return body

    def _seed(self, params: SamplingParams) -> int | None:
        """The seed that counts; None on a server that heeds none."""
        if not self._server.info.seeds:
            return None
        return secrets.randbits(31) if params.seed is None else params.seed

    def _prompt(self, more: int) -> Prompt:
        prompt = self.transcript.prompt()
        size, limit = len(prompt.tokens), self._server.info.max_context
        if size + more > limit:
            raise PromptTooLong(
                f"{size} tokens and {more} to come exceed the server's {limit}",
                hint="shorten the prompt, lower max_tokens, or start it with --context-length",
            )
        return prompt

    async def score(self, choices: Sequence[str], *, empty_context: bool = False) -> ScoreResult:
        """See `Session`. One request holds all."""
        with self.step() as limit:
            prompt = self._prompt(0)
            tokens, scored = self.transcript.choices(prompt, choices)
            rows = [tokens + choice.tokens for choice in scored]
            starts = [len(tokens) - 1] * len(rows)
            if empty_context:
                rows += [choice.tokens for choice in scored]
                starts += [0] * len(scored)
            rids = [uuid.uuid4().hex for _ in rows]
            body = {
                "rid": rids,
                "input_ids": rows,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                "return_logprob": True,
                "logprob_start_len": starts,
                "top_logprobs_num": 1,
                **self._server.common(self.place),
            }
            if self.place.namespace:
                body["extra_key"] = [self.place.namespace] * len(rows)
            async with _aborting(self._server, rids):
                replies = await self._server.http.post("/generate", body, limit)
            read, cached = read_scores(replies, scored, empty_context)
            reused = min(cached, len(tokens))
            usage = Usage(
                prompt=len(tokens),
                reused=reused,
                prefilled=len(tokens) - reused,
                scored=sum(map(len, rows)) - len(tokens) * len(scored),
            )
            self._known = len(tokens)
            computed = self.transcript.computed_chars(prompt, reused)
            return ScoreResult(read, usage, computed_chars=computed)

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        """See `Session`. What is new and long is computed once before, not by every fork."""
        places = self.children(n, branches)
        tokens = self.transcript.prompt().tokens if n > 1 else []
        if len(tokens) - self._known >= _WARM_FROM:
            with self.step() as limit:
                await self._server.warm(tokens, self.place, limit)
            self._known = len(tokens)
        forks: list[Session] = []
        for place in places:
            fork = SGLangSession(self._server, self.transcript.copy(), place)
            fork._known = self._known
            forks.append(fork)
        return forks

    async def snapshot(self) -> Snapshot:
        """See `Session`."""
        self.check_open()
        return self.transcript.snapshot(
            self._server.fingerprint, self.place.branch, self.place.namespace
        )


@contextlib.asynccontextmanager
async def _aborting(server: Server, rids: Sequence[str], stream: Any = None) -> AsyncIterator[None]:
    """Tell the server to stop the requests if they are given up here; and close the stream."""
    try:
        yield
    except (GeneratorExit, asyncio.CancelledError, Cancelled, DeadlineExceeded):
        server.abort(rids)
        raise
    finally:
        if stream is not None:
            await stream.aclose()
