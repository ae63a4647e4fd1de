"""Servers that refuse work, die or change their model while others work: where a step goes then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from phloem.errors import EngineError, EngineUnavailable, Overloaded
from phloem.programs.protocol import SamplingParams, Session, StepResult, Text
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .canned import Canned, Replies, canned, reply, stream

MODEL = tiny_model()
PARAMS = SamplingParams(temperature=0, max_tokens=2, stream=False)
ENDED = {"finish_reason": {"type": "length"}, "prompt_tokens": 5, "completion_tokens": 2}
DONE = reply(200, json.dumps({"output_ids": [7, 8], "meta_info": ENDED}))
FULL = {"finish_reason": {"type": "abort", "message": "The queue is full.", "status_code": 503}}
BUSY, RESTS, LATER, MUCH_LATER = (
    reply(503, "draining"),
    reply(503, "draining", extra="Retry-After: 29"),
    reply(429, "too many", extra="Retry-After: 0"),
    reply(429, "too many", extra="Retry-After: 29"),
)
SCORES = {"finish_reason": {"type": "length"}, "output_token_ids_logprobs": [[[-1.0, 7, None]]]}


@asynccontextmanager
async def fleet(
    *replies: Replies, seconds: float = 120
) -> AsyncIterator[tuple[RuntimeEndpoint, list[Canned]]]:
    """A backend on a server for each mapping."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(canned(each)) for each in replies]
        backend = RuntimeEndpoint([s.url for s in servers], tokenizer=MODEL, timeout=seconds)
        yield backend, servers
        await backend.aclose()


async def opened(backend: RuntimeEndpoint) -> Session:
    session = await backend.open("s")
    session.append([Text("Hello")])
    return session


async def step(session: Session, params: SamplingParams = PARAMS) -> StepResult:
    *_, result = [item async for item in session.generate(params)]
    assert isinstance(result, StepResult)
    return result


def asked(servers: list[Canned], path: str = "/generate") -> list[int]:
    return [server.asked.count(path) for server in servers]


@pytest.mark.parametrize(
    "refusal",
    [
        BUSY,
        LATER,
        reply(502, "no upstream"),
        b"",
        reply(200, json.dumps({"output_ids": [], "meta_info": FULL})),
    ],
    ids=["503", "429", "502", "cut", "full"],
)
async def test_a_step_that_is_refused_goes_to_another_server(refusal: bytes) -> None:
    """Too much to do, no server behind the proxy, a broken connection: the next server is asked,
    once, and does it."""
    async with fleet({"/generate": refusal}, {"/generate": DONE}) as (backend, servers):
        assert (await step(await opened(backend))).tokens == (7, 8)
        assert asked(servers) == [1, 1]


async def test_a_server_that_is_busy_rests_and_is_not_lost() -> None:
    """It gets no new session for as long as it says, but still counts as one that works."""
    replies = [{"/generate": [RESTS, DONE]}, {"/generate": DONE}]
    async with fleet(*replies) as (backend, servers):
        for _ in range(3):
            await step(await opened(backend))
        assert asked(servers) == [1, 3]
        assert None not in backend.servers.values()


@pytest.mark.parametrize("status", [400, 500])
async def test_a_failure_of_the_request_is_asked_of_nobody_else(status: int) -> None:
    """What the server could not do with this request, another one is not asked to do: it raises."""
    bad = reply(status, "no")
    async with fleet({"/generate": bad}, {"/generate": bad}) as (backend, servers):
        session = await opened(backend)
        before = await session.snapshot()
        with pytest.raises(EngineError, match=str(status)):
            await step(session)
        assert sorted(asked(servers)) == [0, 1]
        assert await session.snapshot() == before


async def test_a_lone_server_is_asked_again_when_it_says() -> None:
    """A server that names a time is asked again after it, a bounded number of times."""
    async with fleet({"/generate": [LATER, LATER, DONE]}) as (backend, servers):
        assert (await step(await opened(backend))).tokens == (7, 8)
        assert asked(servers) == [3]
    async with fleet({"/generate": LATER}) as (backend, servers):
        with pytest.raises(Overloaded, match="too many"):
            await step(await opened(backend))
        assert asked(servers) == [4]


async def test_nobody_waits_for_what_comes_too_late() -> None:
    """No time named, or one beyond the step's own: the error comes at once."""
    for answer, seconds in ((BUSY, 30), (MUCH_LATER, 28)):
        async with fleet({"/generate": answer}, seconds=seconds) as (backend, servers):
            with pytest.raises(Overloaded) as caught:
                await step(await opened(backend))
            assert caught.value.retryable
            assert asked(servers) == [1]


async def test_with_all_servers_busy_the_first_that_can_is_asked_again() -> None:
    """Each is asked once, then the one that named the nearer time."""
    replies = [{"/generate": MUCH_LATER}, {"/generate": [LATER, DONE]}]
    async with fleet(*replies) as (backend, servers):
        assert (await step(await opened(backend))).tokens == (7, 8)
        assert sorted(asked(servers)) == [1, 2]


async def test_scores_and_prefixes_move_too() -> None:
    """A refused scoring goes to another server; a prefix is kept wherever it can be."""
    scored = reply(200, json.dumps([{"meta_info": SCORES}]))
    replies = [{"/generate": BUSY}, {"/generate": [scored, DONE, DONE]}]
    async with fleet(*replies) as (backend, servers):
        result = await (await opened(backend)).score([(7,)])
        assert result.choices[0].logprobs == (-1.0,)
        await backend.prefill([Text("A prefix")])
        assert asked(servers) == [2, 2]
    async with fleet({"/generate": BUSY}) as (backend, _):
        with pytest.raises(Overloaded):
            await backend.prefill([Text("A prefix")])


async def test_an_output_that_has_begun_is_not_begun_again() -> None:
    """An output with penalties that the server gives up raises after its first token; one without
    goes on elsewhere from there."""
    first = json.dumps({"output_ids": [7], "meta_info": {"finish_reason": None}})
    given_up = {"/generate": stream(first, json.dumps({"output_ids": [7], "meta_info": FULL}))}
    streamed = SamplingParams(temperature=0, max_tokens=2)
    more = json.dumps({"output_ids": [8], "meta_info": ENDED | {"completion_tokens": 1}})
    ends = {"/generate": reply(200, f"data: {more}\n\ndata: [DONE]\n\n")}
    async with fleet(given_up, ends) as (backend, servers):
        assert (await step(await opened(backend), streamed)).tokens == (7, 8)
        assert asked(servers) == [1, 1]
    async with fleet(given_up, ends) as (backend, servers):
        with pytest.raises(Overloaded, match="full"):
            await step(await opened(backend), replace(streamed, presence_penalty=0.5))
        assert asked(servers) == [1, 0]


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server counts as one that was silent."""
    monkeypatch.setattr("phloem.runtime.sglang.fleet._SILENT_S", 0.0)


TINY, OTHER = (reply(200, json.dumps({"model_path": name})) for name in ("tiny", "other"))


@pytest.mark.usefixtures("watchful")
async def test_a_server_that_serves_another_model_now_gets_no_tokens_of_the_old_one() -> None:
    """Replaced while a session lives, it is named with its new model, and the session is as it was;
    once the old model is back, so is the session."""
    replies: Replies = {"/get_model_info": [TINY, TINY, OTHER, TINY], "/generate": DONE}
    async with fleet(replies) as (backend, servers):
        session = await opened(backend)
        await step(session)
        before = await session.snapshot()
        with pytest.raises(EngineUnavailable, match=r"another model now \(other\)"):
            await step(session)
        assert asked(servers) == [1]
        assert await session.snapshot() == before
        await step(session)
        assert asked(servers) == [2]


@pytest.mark.usefixtures("watchful")
async def test_sessions_leave_a_server_that_serves_another_model() -> None:
    """With another server of the model, the session goes on there."""
    replies: list[Replies] = [
        {"/get_model_info": [TINY, TINY, OTHER], "/generate": DONE},
        {"/generate": DONE},
    ]
    async with fleet(*replies) as (backend, servers):
        session = await opened(backend)
        await step(session)
        await step(session)
        assert asked(servers) == [1, 1]
        assert list(backend.servers.values()).count(None) == 1


@pytest.mark.usefixtures("watchful")
async def test_what_says_nothing_of_a_model_is_no_server() -> None:
    """A page in place of the server's word on its model is an error, not a step."""
    for word in (reply(200, "[]"), reply(200, "<html>"), reply(500, "broken")):
        replies: Replies = {"/get_model_info": [TINY, word], "/generate": DONE}
        async with fleet(replies) as (backend, servers):
            with pytest.raises(EngineError):
                await step(await opened(backend))
            assert asked(servers) == [0]
