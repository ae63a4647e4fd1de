"""Several servers behind one backend: real phloem servers over the tiny model; some die."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from phloem.errors import ConfigError, EngineUnavailable
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .tapped import Tap, tapped

MODEL = tiny_model()
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = "A prefix that is long enough to be remembered in blocks of tokens. " * 6


@asynccontextmanager
async def fleet(*taps: Tap) -> AsyncIterator[tuple[RuntimeEndpoint, list[ExitStack]]]:
    """A backend on a server for each tap; closing one's stack ends that server."""
    stacks = [ExitStack() for _ in taps]
    try:
        urls = [
            stack.enter_context(tapped(tap)).url for stack, tap in zip(stacks, taps, strict=True)
        ]
        backend = RuntimeEndpoint(urls, tokenizer=MODEL)
        yield backend, stacks
        await backend.aclose()
    finally:
        for stack in stacks:
            stack.close()


async def step(session, params: SamplingParams = GREEDY, constraint=None) -> StepResult:
    *_, result = [item async for item in session.generate(params, constraint)]
    return result


async def opened(backend, text: str, name: str = "s"):
    session = await backend.open(name)
    session.append([Text(text, heal=False)])
    return session


async def reference(text: str, steps: int) -> list[str]:
    """What one server alone says in so many steps."""
    async with fleet(Tap()) as (backend, _):
        session = await opened(backend, text)
        return [(await step(session)).text for _ in range(steps)]


async def test_sessions_stay_with_their_server() -> None:
    """All steps and forks of a session go to one server; new sessions are spread."""
    taps = [Tap(), Tap()]
    async with fleet(*taps) as (backend, _):
        for number in range(4):
            before = [len(tap.requests) for tap in taps]
            session = await opened(backend, f"Session {number}")
            await step(session)
            for fork in await session.fork(2):
                await step(fork)
            await session.score([" yes", " no"])
            added = [len(tap.requests) - was for tap, was in zip(taps, before, strict=True)]
            assert sorted(added) == [0, 4]
        assert [len(tap.requests) for tap in taps] == [8, 8]


async def test_new_sessions_go_where_their_prefix_is() -> None:
    """A second session with the same long beginning goes to the first one's server, reusing it."""
    taps = [Tap(), Tap()]
    async with fleet(*taps) as (backend, _):
        await step(await opened(backend, "Something else"))
        await step(await opened(backend, LONG))
        at = next(tap for tap in taps if len(tap.requests[0]["input_ids"]) > 64)
        for number in range(3):
            result = await step(await opened(backend, f"{LONG}{number}"))
            assert result.usage.reused > 64
        assert len(at.requests) == 4


async def test_a_session_goes_on_when_its_server_dies() -> None:
    """The next step sends all tokens to the other server and says what one server would say."""
    text = "Once upon a time"
    first, second = await reference(text, 2)
    taps = [Tap(), Tap()]
    async with fleet(*taps) as (backend, stacks):
        session = await opened(backend, text)
        assert (await step(session)).text == first
        home = next(i for i, tap in enumerate(taps) if tap.requests)
        stacks[home].close()
        assert (await step(session)).text == second
        assert len(taps[1 - home].requests[0]["input_ids"]) > len(
            taps[home].requests[0]["input_ids"]
        )
        assert list(backend.servers.values()).count(None) == 1


async def test_an_output_goes_on_when_its_server_breaks_off() -> None:
    """A stream that breaks after some tokens is continued from them elsewhere: no token is lost,
    doubled or different."""
    text = "Once upon a time"
    (whole,) = await reference(text, 1)
    taps = [Tap(cut_after=3), Tap(cut_after=3)]
    async with fleet(*taps) as (backend, _):
        session = await opened(backend, text)
        taps[1].cut_after = taps[0].cut_after = 3
        broken = session.generate(GREEDY)
        items = [await anext(broken)]
        for tap in taps:
            if not tap.requests:
                tap.cut_after = None
        items += [item async for item in broken]
        result = items[-1]
        assert isinstance(result, StepResult)
        assert result.text == whole
        assert sum((item.tokens for item in items[:-1]), ()) == result.tokens
        assert result.usage.generated == 8
        sent = [tap.requests[0] for tap in taps]
        assert {request["sampling_params"]["max_new_tokens"] for request in sent} != {8}


async def test_a_constrained_output_is_not_continued() -> None:
    """What can't be continued from its tokens raises, and the session is as it was."""
    taps = [Tap(cut_after=2), Tap(cut_after=2)]
    async with fleet(*taps) as (backend, _):
        session = await opened(backend, "x")
        before = await session.snapshot()
        with pytest.raises(EngineUnavailable):
            await step(session, SamplingParams(max_tokens=30), Constraint("regex", "[ab]{20}"))
        assert await session.snapshot() == before
        assert sum(len(tap.requests) for tap in taps) == 1


async def test_a_constant_prefix_is_kept_on_every_server() -> None:
    """`prefill` reaches all servers that work; one that is dead is left out, all dead an error."""
    taps = [Tap(), Tap()]
    async with fleet(*taps) as (backend, stacks):
        await backend.prefill([Text(LONG)])
        assert [len(tap.requests) for tap in taps] == [1, 1]
        for number in range(2):
            assert (await step(await opened(backend, f"{LONG}{number}"))).usage.reused > 64
        assert [len(tap.requests) for tap in taps] == [2, 2]
        stacks[0].close()
        await backend.prefill([Text(LONG)])
        await backend.flush_cache()
        stacks[1].close()
        with pytest.raises(EngineUnavailable):
            await backend.prefill([Text(LONG)])


async def test_nobody_left_names_them_all() -> None:
    """With every server down the error names each address."""
    taps = [Tap(), Tap()]
    async with fleet(*taps) as (backend, stacks):
        session = await opened(backend, "x")
        for stack in stacks:
            stack.close()
        with pytest.raises(EngineUnavailable) as caught:
            await step(session)
        assert all(tap.url in str(caught.value) for tap in taps)


async def test_servers_of_other_models_are_refused() -> None:
    """Two servers that serve different models are a mistake, named at the first contact."""
    async with fleet(Tap(), Tap(model=tiny_model(seed=7))) as (backend, _):
        with pytest.raises(ConfigError, match="serves"):
            await backend.start()


async def test_a_dead_address_is_tolerated_at_the_start() -> None:
    """One server of two is enough to begin; the other is asked again later, not at every step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    with tapped() as tap:
        backend = RuntimeEndpoint(f"{dead}, {tap.url}", tokenizer=MODEL)
        await step(await opened(backend, "x"))
        assert backend.servers[dead] is None
        assert Counter(tap.asked)["/generate"] == 1
        await backend.aclose()
    with pytest.raises(ConfigError, match="no server"):
        RuntimeEndpoint(" , ")


async def test_a_server_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its pause a server is asked what it is, and then gets sessions again."""
    monkeypatch.setattr("phloem.runtime.sglang.fleet._PAUSE_S", 0.0)
    taps = [Tap(), Tap()]
    async with fleet(*taps) as (backend, _):
        await backend.start()
        (first, _) = backend._fleet.servers
        first.fail(EngineUnavailable("for the test"))
        for number in range(2):
            await step(await opened(backend, f"Session {number}"))
        assert all(tap.requests for tap in taps)
