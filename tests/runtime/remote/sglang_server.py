"""A server that speaks SGLang's native API over the embedded engine, for tests of its client.

What lives here: the endpoints `RuntimeEndpoint` uses, with SGLang's shapes: ids in and out,
cumulative streams, ends and stops among the ids, log-probabilities of the prompt. The numbers are
a real model's. What does not: SGLang (tests marked `sglang` run against that).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from phloem.grammar.analyser import default_analyser
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, Snapshot, StepResult, TokenEvent
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.engine.messages import Scored
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.sequence import Sequence as TokenSequence
from phloem.runtime.engine.tokens import Choice
from phloem.runtime.mailbox import Mailbox
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tiny import tiny_model

NAMES = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")


@dataclass
class FakeSGLang:
    """`info` overrides what /get_server_info says; `enforce=False` ignores constraints."""

    info: dict[str, Any] = field(default_factory=dict)
    enforce: bool = True
    model: LoadedModel = field(default_factory=tiny_model)
    requests: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    closed: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.backend = EmbeddedBackend(self.model)

    @property
    def incremental(self) -> bool:
        """Whether streams send each token once."""
        return bool(self.info.get("incremental_streaming_output"))

    def app(self) -> Starlette:
        """The endpoints."""
        post = ["POST"]
        return Starlette(
            routes=[
                Route("/get_model_info", self.model_info),
                Route("/get_server_info", self.server_info),
                Route("/generate", self.generate, methods=post),
                Route("/abort_request", self.abort, methods=post),
                Route("/flush_cache", self.flush, methods=post),
            ]
        )

    async def model_info(self, _: Request) -> Response:
        """As SGLang's."""
        return JSONResponse({"model_path": "tiny", "tokenizer_path": "tiny"})

    async def server_info(self, _: Request) -> Response:
        """Server arguments and state in one object."""
        said = {
            "version": "0.5.23",
            "max_req_input_len": 4000,
            "grammar_backend": "xgrammar",
            "enable_deterministic_inference": True,
        }
        return JSONResponse(said | self.info)

    async def abort(self, request: Request) -> Response:
        """Notes the id; the closed connection ends the work."""
        self.aborted.append((await request.json())["rid"])
        return Response()

    async def flush(self, _: Request) -> Response:
        """Plain text, as SGLang's."""
        await self.backend.flush_cache()
        return PlainTextResponse("Cache flushed.\n")

    async def generate(self, request: Request) -> Response:
        """One prompt streamed, or prompts scored or prefilled."""
        body = await request.json()
        self.requests.append(body)
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        ids = body["input_ids"]
        if isinstance(ids[0], int):
            return JSONResponse(await self._prompt(ids, body, body.get("logprob_start_len", -1)))
        starts = body["logprob_start_len"]
        return JSONResponse(
            [await self._prompt(row, body, at) for row, at in zip(ids, starts, strict=True)]
        )

    async def _prompt(self, ids: list[int], body: dict[str, Any], start: int) -> dict[str, Any]:
        """A prompt of which nothing is generated: its log-probabilities from `start` on."""
        start = len(ids) - 1 if start < 0 else start
        prefix, rest = ids[: start + 1], ids[start + 1 :]
        mailbox = Mailbox()
        sequence = TokenSequence(_key(body), list(prefix), len(prefix) - 1)
        await self.backend.start()
        self.backend.engine.submit(Scoring(sequence, mailbox.put, choices=[Choice("", rest)]))
        message = await mailbox.get()
        assert isinstance(message, Scored)
        (found,) = message.choices
        greedy = [i < found.greedy_prefix for i in range(len(rest))]
        meta = {
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": len(ids),
            "completion_tokens": 0,
            "cached_tokens": message.usage.reused,
            "input_token_logprobs": [
                [None, prefix[-1], None],
                *([p, t, None] for p, t in zip(found.logprobs, rest, strict=True)),
            ],
            "input_top_logprobs": [
                None,
                *([[0.0, t if g else -1, None]] for t, g in zip(rest, greedy, strict=True)),
            ],
        }
        return {"text": "", "output_ids": [], "meta_info": meta}

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        session = await self.backend.restore(
            Snapshot(self.model.fingerprint, tuple(body["input_ids"]), namespace=_key(body)), "x"
        )
        params = _params(body)
        ids: list[int] = []
        listed: list[Any] = []
        done = False
        try:
            async for item in session.generate(params, self._constraint(body)):
                if isinstance(item, StepResult):
                    ids += [min(self.model.eos_ids)] if item.finish_reason == "stop" else []
                    yield self._event(body, ids, 0, listed, item)
                    break
                ids += item.tokens
                listed += [[one.logprob, one.token, None] for one in item.logprobs]
                yield self._event(body, ids, len(item.tokens), listed, item)
                if any(stop in self.model.tokenizer.decode(ids) for stop in _stops(body)):
                    yield self._event(body, ids, 0, listed, None)
                    break
            done = True
            yield "data: [DONE]\n\n"
        finally:
            self.closed += not done

    def _event(
        self,
        body: dict[str, Any],
        ids: list[int],
        new: int,
        listed: list[Any],
        item: TokenEvent | StepResult | None,
    ) -> str:
        """Everything so far, or with `incremental` the `new` last tokens."""
        ended = not isinstance(item, TokenEvent)
        kind = item.finish_reason if isinstance(item, StepResult) else "stop"
        eos = 1 if isinstance(item, StepResult) and kind == "stop" else 0
        shown = ids[len(ids) - new - eos :] if self.incremental else ids
        meta: dict[str, Any] = {
            "finish_reason": {"type": "length" if kind == "length" else "stop"} if ended else None,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": item.usage.generated if isinstance(item, StepResult) else len(ids),
            "cached_tokens": item.usage.reused if isinstance(item, StepResult) else 0,
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = listed
        reply = {"text": "(not to be read)", "output_ids": shown, "meta_info": meta}
        return f"data: {json.dumps(reply)}\n\n"

    def _constraint(self, body: dict[str, Any]) -> Constraint | None:
        asked = body["sampling_params"]
        if not self.enforce:
            return None
        if "regex" in asked:
            return default_analyser().build(regex=asked["regex"], finish="free")
        if "json_schema" in asked:
            return default_analyser().build(schema=asked["json_schema"], finish="free")
        return None


def _key(body: dict[str, Any]) -> str:
    key = body.get("extra_key", "")
    return str(key[0] if isinstance(key, list) else key)


def _stops(body: dict[str, Any]) -> list[str]:
    return list(body["sampling_params"].get("stop", []))


def _params(body: dict[str, Any]) -> SamplingParams:
    asked = body["sampling_params"]
    return SamplingParams(
        max_tokens=asked["max_new_tokens"],
        min_tokens=asked["min_new_tokens"],
        ignore_eos=asked["ignore_eos"],
        seed=asked.get("sampling_seed"),
        logprobs=body.get("top_logprobs_num") if body.get("return_logprob") else None,
        **{name: asked[name] for name in NAMES},
    )


@contextmanager
def serving(fake: FakeSGLang) -> Iterator[FakeSGLang]:
    """Run it on a loopback port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(fake.app(), log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            while not server.started:
                time.sleep(0.005)
            yield fake
        finally:
            server.should_exit = True
            thread.join()
            fake.backend.engine.stop()
