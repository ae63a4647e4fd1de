"""Event streams: early headers, heartbeats, errors before and after the first byte."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from phloem.errors import OutOfMemory, PromptTooLong
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.server.http.sse import EventStream, event
from phloem.server.settings import load_settings
from tests.server.harness import Running, serving

Start = Callable[..., AbstractContextManager[Running]]


def test_a_queued_stream_has_headers_and_heartbeats(start: Start) -> None:
    """A stream that waits for a place sends its headers early, then comment lines, then data."""
    with start(max_running=1, early_headers_s=0.05, heartbeat_s=0.05) as server:
        long = server.chat_body(max_tokens=800, ignore_eos=True, stream=True)
        with server.client.stream("POST", "/v1/chat/completions", json=long) as first:
            lines = first.iter_lines()
            next(lines)
            short = server.chat_body(max_tokens=3, stream=True)
            with server.client.stream("POST", "/v1/chat/completions", json=short) as second:
                assert second.headers["content-type"].startswith("text/event-stream")
                assert second.headers["x-accel-buffering"] == "no"
                assert "no-cache" in second.headers["cache-control"]
                assert server.state.gate.queued == 1
                text = "".join(second.iter_text())
    blocks = [block for block in text.split("\n\n") if block]
    assert blocks[0].startswith(":")
    data = [block for block in blocks if not block.startswith(":")]
    assert data[-1] == "data: [DONE]"
    assert all(json.loads(block[6:]) for block in data[:-1])


@pytest.mark.parametrize(
    ("path", "body", "first"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, "data: {"),
        ("/v1/completions", {"prompt": "Hi"}, ": accepted"),
        ("/generate", {"text": "Hi"}, ": accepted"),
    ],
)
def test_a_stream_begins_when_the_engine_has_accepted_it(
    path: str, body: dict[str, Any], first: str
) -> None:
    """The first event does not wait for the engine's first token where others come before it."""
    engine = EmbeddedBackend(tiny_model(), max_running=1)
    with serving(engine, early_headers_s=600, heartbeat_s=600) as server:
        long = server.chat_body(max_tokens=4000, ignore_eos=True, stream=True)
        with server.client.stream("POST", "/v1/chat/completions", json=long) as before:
            going = before.iter_lines()
            next(going)
            known = {} if path == "/generate" else {"model": server.model}
            asked = known | body | {"stream": True}
            with server.client.stream("POST", path, json=asked) as reply:
                lines = reply.iter_lines()
                assert next(lines).startswith(first)
                assert engine.engine.call(lambda state: len(state.waiting)).result() == 1
        server.wait_idle()


def test_pieces_arrive_one_by_one() -> None:
    """Each token is on the wire before the next one is made: none is, until it was read."""
    read = threading.Semaphore(1)

    async def gate() -> None:
        await asyncio.to_thread(read.acquire)

    with serving(ScriptedBackend(["abcdefgh"], gate=gate)) as server:
        body = server.chat_body(stream=True)
        with server.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            pieces = 0
            for line in reply.iter_lines():
                if '"content":"' in line and "role" not in line:
                    pieces += 1
                    read.release()
    assert pieces == 8


async def send_all(source: AsyncGenerator[bytes, None], **settings: Any) -> list[dict[str, Any]]:
    """What an EventStream sends to a client that stays."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(
        source, load_settings(**settings), lambda error: [event(type(error).__name__)]
    )
    await stream({"type": "http", "path": "/", "method": "GET", "headers": []}, receive, send)
    return sent


async def test_an_early_error_is_a_plain_reply() -> None:
    """An error before the first event has its own status and no event stream."""

    async def source() -> AsyncGenerator[bytes, None]:
        raise PromptTooLong("too long")
        yield b""

    sent = await send_all(source())
    assert sent[0]["status"] == 400
    assert (b"content-type", b"application/json") in sent[0]["headers"]


async def test_a_late_error_is_an_event_at_the_end() -> None:
    """An error after the first event becomes the last event of a 200."""

    async def source() -> AsyncGenerator[bytes, None]:
        yield event("one")
        raise OutOfMemory("no pages")

    sent = await send_all(source())
    assert [message.get("status") for message in sent] == [200, None, None, None]
    body = b"".join(message.get("body", b"") for message in sent)
    assert body == b"data: one\n\ndata: OutOfMemory\n\n"
    assert sent[-1]["more_body"] is False


async def test_silence_is_filled_with_comments_between_events() -> None:
    """Comment lines come while the source is silent, never inside an event."""

    async def source() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.05)
        yield event("one")
        await asyncio.sleep(0.05)
        yield event("two")

    sent = await send_all(source(), early_headers_s=0.01, heartbeat_s=0.01)
    blocks = b"".join(m.get("body", b"") for m in sent).split(b"\n\n")
    assert blocks[0].startswith(b":")
    assert [b for b in blocks if b and not b.startswith(b":")] == [b"data: one", b"data: two"]


async def test_the_source_is_closed_when_the_client_goes_away() -> None:
    """A disconnect closes the source at once."""
    closed = asyncio.Event()
    gone = asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            yield event("one")
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def send(message: Any) -> None:
        if message.get("body"):
            gone.set()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    stream = EventStream(source(), load_settings(), lambda _: [])
    await stream({"type": "http", "path": "/", "method": "GET", "headers": []}, receive, send)
    assert closed.is_set()


@pytest.mark.parametrize("fault_after", [0, 3])
def test_a_step_that_fails_in_a_stream_says_so(fault_after: int) -> None:
    """An engine error is a status before the first token, and an error event after it."""
    backend = ScriptedBackend(
        ["abcdef"], faults={0: OutOfMemory("no pages left")}, fault_after=fault_after
    )
    with serving(backend) as server:
        reply = server.chat(stream=True)
    if fault_after == 0:
        assert reply.status_code == 507
        assert reply.json()["error"]["code"] == "out_of_memory"
    else:
        assert reply.status_code == 200
        blocks = reply.text.strip().split("\n\n")
        assert json.loads(blocks[-2][6:])["error"]["code"] == "out_of_memory"
        assert blocks[-1] == "data: [DONE]"
