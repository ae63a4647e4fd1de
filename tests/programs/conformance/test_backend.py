"""What every engine must do: `programs/protocol.py`, sentence by sentence."""

from __future__ import annotations

import re

import pytest

from phloem.errors import PromptTooLong, Unsupported
from phloem.programs.protocol import (
    Backend,
    SamplingParams,
    Session,
    Special,
    StepResult,
    Text,
    TokenEvent,
)

from .conftest import REGEX

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


async def collect(session: Session, params: SamplingParams = GREEDY, constraint=None):
    items = [item async for item in session.generate(params, constraint)]
    events, result = items[:-1], items[-1]
    assert all(isinstance(event, TokenEvent) for event in events)
    assert isinstance(result, StepResult)
    return events, result


async def opened(backend: Backend, *texts: str, **options) -> Session:
    session = await backend.open("s", **options)
    session.append([Text(text) for text in texts])
    return session


async def test_stream_ends_in_one_result(backend: Backend) -> None:
    """A step yields events and then exactly one result; pieces and tokens join to the result."""
    events, result = await collect(await opened(backend, "Hello"))
    assert "".join(event.text for event in events) == result.text
    assert sum((event.tokens for event in events), ()) == result.tokens
    # A character that max_tokens cut, or a stop text, was generated but is not part of the result.
    assert len(result.tokens) <= result.usage.generated <= 6
    assert result.usage.prompt == result.usage.reused + result.usage.prefilled
    assert result.finish_reason in {"stop", "length"}


async def test_greedy_is_repeatable_and_seeds_decide(backend: Backend) -> None:
    """Greedy steps are equal, and so are sampled ones with equal seed and branch, if the engine
    can seed at all."""
    sampled = [SamplingParams(seed=7, max_tokens=6)] if backend.capabilities.seed else []
    for params in (GREEDY, *sampled):
        texts = {
            (await collect(await opened(backend, "x", branch="b"), params))[1].text for _ in "ab"
        }
        assert len(texts) == 1


async def test_a_seed_that_was_drawn_is_reported(backend: Backend) -> None:
    """With no seed the engine draws one and says which, if it can seed at all."""
    if not backend.capabilities.seed:
        pytest.skip("the engine has no seeds")
    _, result = await collect(await opened(backend, "x"), SamplingParams(seed=5, max_tokens=2))
    assert result.seed == 5


async def test_max_tokens_bounds_output(backend: Backend) -> None:
    """A step that reaches max_tokens ends with finish reason "length"."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    _, result = await collect(await opened(backend, "Hello"), params)
    assert (result.usage.generated, result.finish_reason) == (3, "length")


async def test_constraint_holds(backend: Backend) -> None:
    """With a constraint the text is a text of its language."""
    if "regex" not in backend.capabilities.constraints:
        pytest.skip("the engine enforces no regex")
    params = SamplingParams(temperature=1, seed=1, max_tokens=40)
    events, result = await collect(await opened(backend, "I have a "), params, REGEX)
    assert re.fullmatch(REGEX.source, result.text)
    assert "".join(event.text for event in events) == result.text
    assert result.finish_reason == "stop"


async def test_session_goes_on_from_its_output(backend: Backend) -> None:
    """What was generated is part of the session: the next step reuses it."""
    session = await opened(backend, "Once upon a time")
    _, first = await collect(session)
    session.append([Text(" and then")])
    _, second = await collect(session)
    assert second.usage.prompt > first.usage.prompt
    again = await backend.open("t")
    again.append([Text("Once upon a time")])
    _, same = await collect(again)
    assert same.text == first.text


async def test_score_leaves_the_session_alone(backend: Backend) -> None:
    """Scores come in order, a log-probability per token, and change nothing."""
    if not backend.capabilities.score:
        pytest.skip("the engine can't score")
    session = await opened(backend, "The answer is")
    scored = await session.score([" yes", " no", " perhaps"])
    assert [choice.text for choice in scored.choices] == [" yes", " no", " perhaps"]
    for choice in scored.choices:
        assert len(choice.logprobs) == len(choice.tokens) > 0
        assert all(value <= 0 for value in choice.logprobs)
    _, after = await collect(session)
    _, fresh = await collect(await opened(backend, "The answer is"))
    assert after.text == fresh.text


async def test_unconditional_scores(backend: Backend) -> None:
    """`empty_context` gives each token's value with nothing before the choice."""
    if not backend.capabilities.score:
        pytest.skip("the engine can't score")
    session = await opened(backend, "The answer is")
    scored = await session.score([" yes", " never again"], empty_context=True)
    for choice in scored.choices:
        assert len(choice.unconditional) == len(choice.tokens)


async def test_forks_share_the_past_and_not_the_future(backend: Backend) -> None:
    """Forks go on from the session's text; neither they nor it see each other's."""
    session = await opened(backend, "A shared beginning.")
    first, second = await session.fork(2)
    assert len({session.id, first.id, second.id}) == 3
    first.append([Text(" First")])
    second.append([Text(" Second")])
    texts = [(await collect(branch))[1].text for branch in (first, second, session)]
    for suffix, text in zip([" First", " Second", ""], texts, strict=True):
        _, alone = await collect(await opened(backend, "A shared beginning." + suffix))
        assert text == alone.text


async def test_fork_of_an_empty_session(backend: Backend) -> None:
    """A session may be forked before it has any text, and into no forks."""
    session = await backend.open("s")
    assert await session.fork(0) == []
    (fork,) = await session.fork(1)
    fork.append([Text("x")])
    await collect(fork)


async def test_snapshot_restores_what_was_said(backend: Backend) -> None:
    """A restored session goes on as the original would have."""
    if not backend.capabilities.snapshot:
        pytest.skip("the engine has no snapshots")
    session = await opened(backend, "Once upon")
    await collect(session)
    session.append([Text(" more")])
    snapshot = await session.snapshot()
    again = await backend.restore(snapshot, "again")
    assert (await collect(again))[1].text == (await collect(session))[1].text


async def test_text_never_becomes_a_special_token(backend: Backend) -> None:
    """A special token's spelling in text is longer than the token itself."""
    chat = backend.chat
    special = next(
        part for parts in chat.prefix.values() for part in parts if isinstance(part, Special)
    )
    as_text, as_token = await backend.open("a"), await backend.open("b")
    as_text.append([Text(f"x{special.token}")])
    as_token.append([Text("x"), special])
    _, text = await collect(as_text)
    _, token = await collect(as_token)
    assert text.usage.prompt > token.usage.prompt


async def test_unknown_special_token_is_refused(backend: Backend) -> None:
    """A special token that the model lacks is `Unsupported`."""
    session = await backend.open("s")
    with pytest.raises(Unsupported):
        session.append([Special("<|no such token|>")])


async def test_too_long_is_refused_and_changes_nothing(backend: Backend) -> None:
    """What can never fit raises before any work, and the session stays usable."""
    session = await opened(backend, "Hello")
    with pytest.raises(PromptTooLong):
        await collect(session, SamplingParams(max_tokens=backend.capabilities.max_context + 1))
    _, after = await collect(session)
    _, fresh = await collect(await opened(backend, "Hello"))
    assert after.text == fresh.text


async def test_leaving_a_stream_keeps_what_was_delivered(backend: Backend) -> None:
    """Closing the stream early ends the step; the session ends at the last delivered token."""
    session = await opened(backend, "Hello")
    stream = session.generate(SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    seen = ""
    async for item in stream:
        assert isinstance(item, TokenEvent)
        seen += item.text
        if seen:
            break
    await stream.aclose()
    _, rest = await collect(session)
    _, whole = await collect(
        await opened(backend, "Hello"), SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    )
    assert rest.usage.prompt > whole.usage.prompt


async def test_count_and_prefill(backend: Backend) -> None:
    """Counting is about the text alone, and a prefilled prefix reports its tokens."""
    assert backend.count("") == 0
    assert backend.count("hello hello") >= 1
    assert await backend.prefill([Text("A constant prefix.")]) >= 1
    await backend.flush_cache()


async def test_closing_twice(backend: Backend) -> None:
    """A session may be closed twice, and hinted and cancelled when nothing runs."""
    session = await opened(backend, "x")
    session.hint(3)
    session.hint(None)
    await session.cancel()
    await session.close()
    await session.close()


async def test_namespaces_change_no_text(backend: Backend) -> None:
    """A namespace decides what is shared, never what is said."""
    texts = {
        (await collect(await opened(backend, "Hello", namespace=space)))[1].text
        for space in ("", "a", "b")
    }
    assert len(texts) == 1
