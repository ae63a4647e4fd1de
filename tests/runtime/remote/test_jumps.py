"""What a pattern forces is put in on the way: what a server is asked for, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from phloem.errors import EngineError
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, StepResult, Text, TokenEvent
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .canned import Canned, Replies, canned, reply

MODEL = tiny_model()
TOKENIZER = MODEL.tokenizer
PARAMS = SamplingParams(temperature=0, max_tokens=80, stream=False)
CALL = Constraint("regex", r'\{"tool": "(search|count)", "row": "[0-9]{2}"\}')
TEXT = '{"tool": "count", "row": "42"}'
SIZE = len(TOKENIZER.encode(TEXT))
INFO = {"version": "0.5.23", "max_req_input_len": 4000, "grammar_backend": "xgrammar"}


class Speaker:
    """A server that goes on in `text` from where it is asked to, up to a stop, as SGLang does."""

    def __init__(self, text: str = TEXT) -> None:
        self.text = text

    def __call__(self, body: dict[str, Any]) -> bytes:
        """The reply to a request."""
        tokens, reason = self.say(body)
        meta = {"finish_reason": reason, "cached_tokens": len(body["input_ids"]) - 1,
                "completion_tokens": len(tokens)}  # fmt: skip
        answer = json.dumps({"output_ids": tokens, "meta_info": meta})
        if body["stream"]:
            return reply(200, f"data: {answer}\n\ndata: [DONE]\n\n")
        return reply(200, answer)

    def say(self, body: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """The tokens, and why it stops."""
        asked = body["sampling_params"]
        before = TOKENIZER.decode(body["input_ids"]).removeprefix("Hello")
        assert self.text.startswith(before)
        tokens: list[int] = []
        for token in TOKENIZER.encode(self.text[len(before) :]):
            if len(tokens) == asked["max_new_tokens"]:
                return tokens, {"type": "length"}
            tokens.append(token)
            said = TOKENIZER.decode(tokens)
            for stop in asked.get("stop", ()):
                if stop in said:
                    return tokens, {"type": "stop", "matched": stop}
        if len(tokens) == asked["max_new_tokens"]:
            return tokens, {"type": "length"}
        (end, *_) = asked["stop_token_ids"]
        return [*tokens, end], {"type": "stop", "matched": end}


@asynccontextmanager
async def speaking(*speakers: Any) -> AsyncIterator[tuple[RuntimeEndpoint, list[Canned]]]:
    """A backend on a server for each speaker."""
    async with AsyncExitStack() as stack:
        servers = []
        for speaker in speakers:
            replies: Replies = {
                "/generate": speaker,
                "/get_server_info": reply(200, json.dumps(INFO)),
            }
            servers.append(await stack.enter_async_context(canned(replies)))
        backend = RuntimeEndpoint([server.url for server in servers], tokenizer=MODEL)
        yield backend, servers
        await backend.aclose()


async def step(
    backend: RuntimeEndpoint, params: SamplingParams = PARAMS, constraint: Constraint = CALL
) -> tuple[list[TokenEvent], StepResult]:
    """One step after "Hello"; its session then ends in what it said."""
    session = await backend.open("s")
    session.append([Text("Hello", heal=False)])
    *events, result = [item async for item in session.generate(params, constraint)]
    assert isinstance(result, StepResult)
    said = TOKENIZER.decode((await session.snapshot()).tokens)
    assert said.endswith("Hello" + result.text)
    assert "".join(event.text for event in events) == result.text
    assert sum((event.tokens for event in events), ()) == result.tokens
    return events, result


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pattern_is_asked_for_in_pieces(stream: bool) -> None:
    """The server says what is open; the beginning, the middle and the end are put in, and the step
    for the end of the text is not taken. Streamed or not, the text and its tokens are whole."""
    async with speaking(Speaker()) as (backend, (server,)):
        _, result = await step(backend, replace(PARAMS, stream=stream))
        assert (result.text, result.finish_reason, result.stop) == (TEXT, "stop", None)
        assert [body["sampling_params"]["stop"] for body in server.bodies] == [['"'], ['"']]
        first, second = (body["input_ids"] for body in server.bodies)
        assert second[: len(first)] == first
        assert result.usage.generated == len(result.tokens)
        assert 0 < result.usage.forced < len(result.tokens)
        assert result.usage.reused == min(result.usage.prompt, len(first) - 1)


async def test_a_bounded_rest_needs_no_end() -> None:
    """Where as many bytes as the rest can have are asked for, the text is over with them."""
    for text, tokens in ((" 7", 1), (" 42", 2)):
        async with speaking(Speaker(text)) as (backend, (server,)):
            pattern = f" [0-9]{{{tokens}}}"
            _, result = await step(backend, constraint=Constraint("regex", pattern))
            assert (result.text, result.finish_reason) == (text, "stop")
            (body,) = server.bodies
            left = len(text) - (len(TOKENIZER.decode(body["input_ids"])) - len("Hello"))
            assert body["sampling_params"]["max_new_tokens"] == left


async def test_a_text_that_is_cut_says_so() -> None:
    """`max_tokens` cuts in what the server says as well as in what is put in, to the token."""
    for most in range(1, SIZE):
        async with speaking(Speaker()) as (backend, _):
            _, result = await step(backend, replace(PARAMS, max_tokens=most))
            assert len(result.tokens) <= most
            assert TEXT.startswith(result.text)
            assert result.finish_reason == "length"


async def test_the_users_stops_count_in_what_is_put_in() -> None:
    """A stop text of the program's own ends the step wherever it comes."""
    for stop, text in ((', "row', '{"tool": "count"'), ("un", '{"tool": "co'), ("2", TEXT[:-3])):
        async with speaking(Speaker()) as (backend, _):
            _, result = await step(backend, replace(PARAMS, stop=(stop,)))
            assert (result.text, result.stop, result.finish_reason) == (text, stop, "stop")


async def test_what_the_server_must_see_come_is_asked_for_whole() -> None:
    """With log-probabilities or penalties the constraint is sent as it is."""
    for params in (replace(PARAMS, presence_penalty=0.5), replace(PARAMS, frequency_penalty=0.5)):
        async with speaking(Speaker()) as (backend, (server,)):
            _, result = await step(backend, params)
            assert (result.text, result.usage.forced) == (TEXT, 0)
            (body,) = server.bodies
            assert body["sampling_params"]["regex"] == CALL.source
            assert "stop" not in body["sampling_params"]


async def test_a_server_that_dies_between_pieces_is_replaced() -> None:
    """Before the first token of a piece another server can go on: it is sent the rest."""

    def once(body: dict[str, Any]) -> bytes:
        return Speaker()(body) if len(TOKENIZER.decode(body["input_ids"])) < 20 else b""

    async with speaking(once, once) as (backend, servers):
        await backend.start()
        servers[1].replies = dict(servers[1].replies) | {"/generate": Speaker()}
        _, result = await step(backend)
        assert result.text == TEXT
        assert [len(server.bodies) for server in servers] == [2, 1]


async def test_a_server_that_stops_too_early_is_found_out() -> None:
    """A piece that is not the pattern's is an error, not a text."""

    class Liar(Speaker):
        def say(self, body: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
            return TOKENIZER.encode('find"'), {"type": "stop", "matched": '"'}

    async with speaking(Liar()) as (backend, _):
        with pytest.raises(EngineError, match="did not keep the regex"):
            await step(backend)


async def test_a_server_that_pays_no_heed_to_the_stop_says_all() -> None:
    """A server that goes on to the end is taken at its word."""

    class Deaf(Speaker):
        def say(self, body: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
            kept = {k: v for k, v in body["sampling_params"].items() if k != "stop"}
            return super().say(body | {"sampling_params": kept})

    async with speaking(Deaf()) as (backend, (server,)):
        _, result = await step(backend)
        assert (result.text, result.finish_reason) == (TEXT, "stop")
        assert len(server.bodies) == 1


async def test_a_server_is_sent_no_more_stops_than_it_takes() -> None:
    """With 32 stop texts of the program's own there is no place for another one."""
    stops = tuple(f"never {number}" for number in range(32))
    async with speaking(Speaker()) as (backend, (server,)):
        _, result = await step(backend, replace(PARAMS, stop=stops))
        assert (result.text, result.finish_reason) == (TEXT, "stop")
        assert {len(body["sampling_params"]["stop"]) for body in server.bodies} == {32}


async def test_nothing_more_is_asked_while_others_run() -> None:
    """A request in the middle makes all that run on the server wait: with many it is not made."""
    async with speaking(Speaker()) as (backend, (server,)):
        await backend.start()
        session = await backend.open("s")
        session._home = backend._fleet.servers[0]
        session._home.running = 8
        session.append([Text("Hello", heal=False)])
        *_, result = [item async for item in session.generate(PARAMS, CALL)]
        assert isinstance(result, StepResult)
        assert result.text == TEXT
        (body,) = server.bodies
        assert "stop" not in body["sampling_params"]
        assert result.usage.forced < SIZE
