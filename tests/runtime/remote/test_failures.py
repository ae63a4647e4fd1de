"""What goes wrong on the way to a server ends in an error that says what and where."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace

import pytest

from phloem.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    EngineError,
    EngineUnavailable,
    ModelError,
    Overloaded,
    PhloemError,
)
from phloem.programs.protocol import SamplingParams, Session, StepResult, Text
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
        (stream('{"meta_info": {"finish_reason": {"type": "abort", "message": "full", '
                '"status_code": 503}}}'), Overloaded, ["503", "full"]),
        (stream('{"output_ids": [1, "2"], "meta_info": {}}'), EngineError, ["no list", "'2'"]),
        (stream('{"text": "a", "meta_info": {}}'), EngineError, ["no list of token ids"]),
        (stream('{"output_ids": [1], "meta_info": {"finish_reason": "stop"}}'),
         EngineError, ["finish_reason", "stop"]),
        (stream('{"output_ids": [1], "meta_info": [1]}'), EngineError, ["failed", "[1]"]),
        (stream("null"), EngineError, ["failed: None"]),
        (stream(FIRST, "[DONE]"), EngineError, ["without a finish_reason"]),
        (stream('{"output_ids": [1000000], "meta_info": {}}'), ModelError, ["token 1000000"]),
        (stream(json.dumps({"output_ids": list(range(9)), "meta_info": META})),
         EngineError, ["9 tokens", "8 were asked"]),
        (stream(FIRST, '{"output_ids": [0, 1], "meta_info": {}}'), EngineError, ["do not go on"]),
        (stream('{"output_ids": [1], "meta_info": {"finish_reason": {"type": "length"}, '
                '"completion_tokens": "all"}}'), EngineError, ["no sense", "'all'"]),
        (b"", EngineError, ["broke"]),
        (reply(200, "data: " + FIRST + "\n\n"), EngineError, ["before it was done"]),
    ],
    ids=["400", "502", "401", "503", "500", "cut", "garbled", "error", "abort", "full", "texts",
         "no-ids", "no-type", "no-meta", "null", "no-end", "no-token", "many", "other",
         "count", "silent", "short"],
)  # fmt: skip
async def test_a_failed_step_says_what_the_server_said(
    answer: bytes, kind: type[PhloemError], said: list[str]
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


async def test_a_first_byte_that_never_comes_ends_by_the_timeout() -> None:
    """A server that takes a request and says nothing holds a step no longer than its whole time;
    streamed or not, scored or prefilled, and it is told to stop."""
    for ask in (generate, whole, score):
        async with canned({"/generate": b""}, hang=True) as server:
            backend = RuntimeEndpoint(server.url, tokenizer=MODEL, timeout=1.0)
            session = await backend.open("s")
            session.append([Text("Hello")])
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(ask(session), 20)
            await backend.aclose()
            assert "/abort_request" in server.asked


async def generate(session: Session) -> None:
    """A streamed step."""
    async for _ in session.generate(PARAMS):
        pass


async def whole(session: Session) -> None:
    """A step that is sent in one piece."""
    async for _ in session.generate(replace(PARAMS, stream=False)):
        pass


async def score(session: Session) -> None:
    """A scoring."""
    await session.score([" a"])


async def test_an_output_that_makes_no_sense_is_stopped_at_the_server() -> None:
    """A token that the tokenizer lacks ends the step here, and the server is told so: it would go
    on to the end, for nobody."""
    strange = json.dumps({"output_ids": [MODEL.tokenizer.vocab_size], "meta_info": META})
    async with canned({"/generate": stream(strange)}, hang=True) as server:
        with pytest.raises(ModelError, match="tokenizer"):
            await asyncio.wait_for(step(server), 20)
        assert server.asked[-1] == "/abort_request"


async def test_scores_that_are_not_of_the_request_are_an_error() -> None:
    """Another number of answers, other tokens, or no log-probabilities are no scores."""
    meta = {"finish_reason": {"type": "length"}, "prompt_tokens": 5}
    other = meta | {"output_token_ids_logprobs": [[[-1.0, 1, None]]]}
    for answer in (
        [],
        {},
        [{"meta_info": meta}],
        [{"meta_info": other}],
        [{"meta_info": other}] * 2,
    ):
        async with canned({"/generate": reply(200, json.dumps(answer))}) as server:
            backend = RuntimeEndpoint(server.url, tokenizer=MODEL)
            session = await backend.open("s")
            session.append([Text("Hello")])
            with pytest.raises(EngineError):
                await session.score([(7,)])
            await backend.aclose()


@pytest.mark.parametrize("said", ["null", "NaN", "0.5", "1e308", "-Infinity0", '"x"', "[]"])
async def test_log_probabilities_that_are_none_are_an_error(said: str) -> None:
    """Whatever a server gives in place of the logarithm of a probability, of its own tokens or of
    choices, never becomes a number that decides."""
    end = '"finish_reason": {"type": "length"}, "prompt_tokens": 5'
    chosen = (
        f'{{"output_ids": [7], "meta_info": {{{end}, "output_token_logprobs": [[{said}, 7]]}}}}'
    )
    scored = f'[{{"meta_info": {{{end}, "output_token_ids_logprobs": [[[{said}, 7, null]]]}}}}]'
    params = replace(PARAMS, stream=False, logprobs=0)
    async with canned({"/generate": [reply(200, chosen), reply(200, scored)]}) as server:
        backend = RuntimeEndpoint(server.url, tokenizer=MODEL)
        session = await backend.open("s")
        session.append([Text("Hello")])
        with pytest.raises(EngineError):
            async for _ in session.generate(params):
                pass
        with pytest.raises(EngineError):
            await session.score([(7,)])
        await backend.aclose()


async def test_what_a_constraint_bars_is_no_alternative() -> None:
    """Barred tokens have no log-probability (null): they are left out of the alternatives."""
    meta = META | {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.5, 7, None]],
        "output_top_logprobs": [[[-0.5, 7, None], [None, 8, None]]],
    }
    answer = reply(200, json.dumps({"output_ids": [7], "meta_info": meta}))
    async with canned({"/generate": answer}) as server:
        backend = RuntimeEndpoint(server.url, tokenizer=MODEL)
        session = await backend.open("s")
        session.append([Text("Hello")])
        params = replace(PARAMS, stream=False, logprobs=2)
        *_, result = [item async for item in session.generate(params)]
        assert isinstance(result, StepResult)
        assert [(token, value) for token, _, value in result.logprobs[0].top] == [(7, -0.5)]
        await backend.aclose()


async def test_a_server_that_comes_back_is_used_by_the_same_session() -> None:
    """Refused, the step raises at once and changes nothing; the next one finds the server again."""
    done = json.dumps(
        {"output_ids": [7], "meta_info": META | {"finish_reason": {"type": "length"}}}
    )
    async with canned({"/generate": reply(200, f"data: {done}\n\ndata: [DONE]\n\n")}) as server:
        backend = RuntimeEndpoint(server.url, tokenizer=MODEL)
        session = await backend.open("s")
        session.append([Text("Hello")])
        before = await session.snapshot()
        await server.stop()
        with pytest.raises(EngineUnavailable, match="nobody answers"):
            await generate(session)
        assert await session.snapshot() == before
        await server.start()
        await generate(session)
        assert (await session.snapshot()).tokens[-1] == 7
        await backend.aclose()


async def test_nobody_there() -> None:
    """A refused connection names the address and the remedy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match=f"nobody answers at http://127.0.0.1:{port}"):
        await RuntimeEndpoint(f"http://127.0.0.1:{port}", tokenizer=MODEL).start()


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/get_model_info", "[]"),
        ("/get_model_info", "{}"),
        ("/get_model_info", '{"model_path": 7}'),
        ("/get_server_info", "[]"),
        ("/get_server_info", '{"version": "0.5.23"}'),
        ("/get_server_info", '{"version": "0.5.23", "max_req_input_len": "long"}'),
    ],
)
async def test_a_server_that_does_not_say_what_it_is(path: str, word: str) -> None:
    """No model, no version, no size: each is an error at the first contact."""
    async with canned({path: reply(200, word)}) as server:
        with pytest.raises(EngineError):
            await RuntimeEndpoint(server.url, tokenizer=MODEL).start()


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
