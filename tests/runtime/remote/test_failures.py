"""What goes wrong on the way to a server ends in an error that says what and where."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from phloem.errors import Cancelled, ConfigError, DeadlineExceeded, EngineError, Overloaded
from phloem.programs.protocol import SamplingParams, Text
from phloem.retrieval.base import traceparent
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.remote.http import HttpClient
from phloem.runtime.remote.limits import Limit
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .canned import Canned, canned, reply, stream

MODEL = tiny_model()
PARAMS = SamplingParams(temperature=0, max_tokens=8)
META = {"finish_reason": None, "prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 0}
FIRST = json.dumps({"text": "a", "output_ids": MODEL.tokenizer.encode("a"), "meta_info": META})


async def step(server: Canned, seconds: float = 30) -> None:
    """One generation on the server, which closes its backend whatever happens."""
    backend = RuntimeEndpoint(server.url, tokenizer=MODEL, timeout=seconds)
    try:
        session = await backend.open("s")
        session.append([Text("Hello")])
        before = await session.snapshot()
        try:
            async for _ in session.generate(PARAMS):
                pass
        finally:
            assert await session.snapshot() == before
    finally:
        await backend.aclose()


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (reply(400, '{"error": {"message": "bad thing"}}'), EngineError, ["400", "bad thing"]),
        (reply(502, "<html>Bad gateway</html>", "text/html"), EngineError, ["502", "<html>"]),
        (reply(401, "who?"), ConfigError, ["401", "api_key"]),
        (reply(503, "busy"), Overloaded, ["503", "busy"]),
        (reply(500, ""), EngineError, ["500", "(empty)"]),
        (stream(FIRST), EngineError, ["/generate broke"]),
        (stream(FIRST, "{oops"), EngineError, ["no JSON", "{oops"]),
        (stream('{"error": {"message": "died inside"}}'), EngineError, ["died inside"]),
        (stream('{"meta_info": {"finish_reason": {"type": "abort", "message": "by hand"}}}'),
         Cancelled, ["by hand"]),
        (b"", EngineError, ["broke"]),
        (reply(200, "data: " + FIRST + "\n\n"), EngineError, ["before it was done"]),
    ],
    ids=["400", "502", "401", "503", "500", "cut", "garbled", "error", "abort", "silent", "short"],
)  # fmt: skip
async def test_a_failed_step_says_what_the_server_said(
    answer: bytes, kind: type[Exception], said: list[str]
) -> None:
    """The error holds the status and the body's start; the session is as it was; nothing hangs,
    and the request was made once."""
    async with canned({"/generate": answer}) as server:
        with pytest.raises(kind) as caught:
            await asyncio.wait_for(step(server), 20)
        assert all(part in str(caught.value) for part in said), str(caught.value)
        assert server.asked.count("/generate") == 1


async def test_a_stream_that_stalls_ends_by_the_timeout() -> None:
    """A server that falls silent mid-stream can't hold a step longer than its whole time."""
    async with canned({"/generate": stream(FIRST)}, hang=True) as server:
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(step(server, 0.2), 20)
        assert server.asked[-1] == "/abort_request"


async def test_nobody_there() -> None:
    """A refused connection names the address and the remedy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match=f"nobody answers at http://127.0.0.1:{port}"):
        await RuntimeEndpoint(f"http://127.0.0.1:{port}", tokenizer=MODEL).start()


async def test_another_product_is_no_sglang_server() -> None:
    """An HTML page instead of JSON at the first contact is an error with its start."""
    page = reply(200, "<html>Welcome to nginx</html>", "text/html")
    async with canned({"/get_model_info": page}) as server:
        with pytest.raises(EngineError, match="Welcome to nginx"):
            await RuntimeEndpoint(server.url, tokenizer=MODEL).start()


def test_an_address_without_http_is_refused() -> None:
    """The address is checked at once."""
    with pytest.raises(ConfigError, match="http"):
        RuntimeEndpoint("127.0.0.1:30000")


async def test_requests_carry_the_trace_context() -> None:
    """What a run asks of a model server is sent the run's trace context; without one nothing is."""
    async with canned({"/generate": reply(200, "{}")}) as server:
        client = HttpClient(server.url, None)
        await client.post("/generate", {}, Limit(5))
        token = traceparent.set(f"00-{'1' * 32}-{'2' * 16}-01")
        try:
            await client.post("/generate", {}, Limit(5))
        finally:
            traceparent.reset(token)
        await client.aclose()
    assert "traceparent" not in server.heads[0].lower()
    assert f"traceparent: 00-{'1' * 32}-" in server.heads[1].lower()
