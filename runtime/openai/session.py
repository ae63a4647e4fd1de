"""Sessions on a chat API.

What lives here: `ChatSession`, and reading its streams. What does not: the backend
(`backend.py`), messages (`dialogue.py`) and bodies (`request.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.errors import EngineError, EngineUnavailable, Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import (
    FinishReason,
    SamplingParams,
    ScoreResult,
    Segment,
    Session,
    Snapshot,
    StepResult,
    TokenEvent,
    Usage,
)
from phloem.runtime.openai.dialogue import Dialogue
from phloem.runtime.openai.request import body_of
from phloem.runtime.place import Place
from phloem.runtime.remote.checking import Checker
from phloem.runtime.remote.http import HttpClient
from phloem.runtime.remote.session import RemoteSession, branch_seed

__all__ = ["ChatServer", "ChatSession"]


@dataclass(frozen=True, slots=True)
class ChatServer:
    """What all sessions of a backend share. `limit` is the server's name for `max_tokens`."""

    http: HttpClient
    model: str
    checker: Checker
    timeout: float | None
    limit: str


class _Answer:
    """One answer as its stream comes in."""

    def __init__(self) -> None:
        self.text = ""
        self.usage = Usage()
        self.reason: FinishReason | None = None

    def read(self, chunk: Mapping[str, Any]) -> str:
        """The new text of a chunk."""
        if "error" in chunk:
            error = chunk["error"]
            message = error.get("message", error) if isinstance(error, Mapping) else error
            raise EngineError(f"the server failed: {str(message)[:500]}", hint="try again")
        if chunk.get("usage"):
            self._count(chunk["usage"])
        new = ""
        for choice in chunk.get("choices", []):
            delta = choice.get("delta", {})
            if delta.get("refusal"):
                raise EngineError(f"the model refused: {delta['refusal']}", hint="ask otherwise")
            new += delta.get("content") or ""
            self._end(choice.get("finish_reason"))
        self.text += new
        return new

    def _end(self, reason: str | None) -> None:
        if reason == "stop":
            self.reason = "stop"
        elif reason == "length":
            self.reason = "length"
        elif reason is not None:
            raise EngineError(
                f"the server ended the answer with {reason!r}", hint="ask otherwise", reason=reason
            )

    def _count(self, usage: Mapping[str, Any]) -> None:
        prompt = usage.get("prompt_tokens", 0)
        reused = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.usage = Usage(
            prompt=prompt,
            reused=reused,
            prefilled=prompt - reused,
            generated=usage.get("completion_tokens", 0),
        )


class ChatSession(RemoteSession, Session):
    """See `programs.protocol.Session`. Token ids are not known: results have none."""

    def __init__(self, server: ChatServer, dialogue: Dialogue, place: Place) -> None:
        super().__init__(place, server.timeout)
        self._server = server
        self._dialogue = dialogue

    def append(self, segments: Sequence[Segment]) -> None:
        """See `Session`. Raises `Unsupported` for text outside of messages."""
        self.check_open()
        self._dialogue.append(segments)

    async def generate(
        self, params: SamplingParams, constraint: Constraint | None = None
    ) -> AsyncIterator[TokenEvent | StepResult]:
        """See `Session`. The seed is passed on; what it is worth is the server's to say."""
        server, answer = self._server, _Answer()
        with self.step() as limit:
            if params.max_tokens == 0:
                # Servers refuse to say nothing.
                yield StepResult("", (), "length", Usage())
                return
            body = {
                "model": server.model,
                "messages": self._dialogue.request(),
                **body_of(params, constraint, server.limit),
            }
            if params.seed is not None:
                body["seed"] = branch_seed(self.place, params.seed)
            if constraint is not None:
                await limit.wait(server.checker.compile(constraint))
            try:
                async with contextlib.aclosing(
                    server.http.stream("/chat/completions", body, limit)
                ) as chunks:
                    async for chunk in chunks:
                        if text := answer.read(chunk):
                            yield TokenEvent(text)
            except (GeneratorExit, asyncio.CancelledError):
                self._dialogue.answer(answer.text)
                raise
            except EngineUnavailable:
                if answer.reason is None:
                    raise
                # It had all been said: some servers send no [DONE].
            result = self._result(answer)
            if constraint is not None:
                server.checker.check(constraint, result)
            self._dialogue.answer(answer.text)
        yield result

    def _result(self, answer: _Answer) -> StepResult:
        if answer.reason is None:
            raise EngineError(
                f"{self._server.http.url} ended the answer without a finish_reason",
                hint="look into the server's log",
            )
        return StepResult(answer.text, (), answer.reason, answer.usage)

    async def score(
        self, choices: Sequence[str | tuple[int, ...]], *, empty_context: bool = False
    ) -> ScoreResult:
        """Always raises `Unsupported`."""
        del choices, empty_context
        raise Unsupported(
            "a chat API can't score choices",
            hint="use gen with a JSON Schema, or RuntimeEndpoint or the embedded engine",
        )

    async def fork(self, n: int, *, branches: Sequence[str] | None = None) -> list[Session]:
        """See `Session`. Forks share text, not work."""
        places = self.children(n, branches)
        return [ChatSession(self._server, self._dialogue.copy(), place) for place in places]

    async def snapshot(self) -> Snapshot:
        """Always raises `Unsupported`: there are no tokens to keep."""
        raise Unsupported("a chat API has no snapshots", hint="run the program again")
