"""The SGLang backend against phloem's own server, which speaks that API, over the tiny model."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from phloem.errors import (
    Cancelled,
    ConstraintError,
    DeadlineExceeded,
    EngineError,
    PromptTooLong,
    Unsupported,
)
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, StepResult, Text, TokenEvent
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .tapped import Tap, tapped

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
MODEL = tiny_model()
SGLANG = {"product": "SGLang", "version": "0.5.23"}
"""What makes a phloem server look like SGLang's."""


@pytest.fixture(scope="module")
def running() -> Iterator[Tap]:
    """One server for the module."""
    with tapped() as fake:
        yield fake


@pytest.fixture
def fake(running: Tap) -> Tap:
    """The server, its notes of requests emptied."""
    running.requests.clear()
    running.aborted.clear()
    return running


@pytest_asyncio.fixture
async def backend(fake: Tap) -> AsyncIterator[RuntimeEndpoint]:
    """A backend on the server."""
    made = RuntimeEndpoint(fake.url, tokenizer=MODEL)
    yield made
    await made.aclose()


async def run(session, params=GREEDY, constraint=None) -> tuple[list[TokenEvent], StepResult]:
    *events, result = [item async for item in session.generate(params, constraint)]
    return events, result


async def opened(backend, *texts, **options):
    session = await backend.open("s", **options)
    session.append([Text(text, heal=False) for text in texts])
    return session


async def test_the_same_tokens_as_the_engine_itself(backend: RuntimeEndpoint) -> None:
    """A step over HTTP gives the tokens that the engine behind the server gives."""
    embedded = EmbeddedBackend(MODEL)
    _, here = await run(await opened(embedded, "Once upon a time"))
    _, there = await run(await opened(backend, "Once upon a time"))
    assert (there.tokens, there.text) == (here.tokens, here.text)
    await embedded.aclose()


async def test_the_next_step_sends_the_very_tokens(backend: RuntimeEndpoint, fake: Tap) -> None:
    """The second request begins with the first one's ids and its output's, and reuses them."""
    session = await opened(backend, "Once upon a time")
    _, first = await run(session)
    session.append([Text(" and then")])
    _, second = await run(session)
    sent = [request["input_ids"] for request in fake.requests]
    kept = sent[0] + list(first.tokens)
    assert sent[1][: len(kept)] == kept
    assert second.usage.reused >= len(kept) - 1
    assert "text" not in fake.requests[0]


async def test_stop_texts_leave_text_and_session(backend: RuntimeEndpoint) -> None:
    """A stop text ends the step, is reported, and stands neither in the text nor the session."""
    long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    _, whole = await run(await opened(backend, "Hello"), long)
    stop = next(char for char in whole.text[2:] if char.isascii() and char not in whole.text[:2])
    at = whole.text.index(stop)
    session = await opened(backend, "Hello")
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=(stop,))
    events, result = await run(session, params)
    kept = whole.text[:at].rstrip("\ufffd")  # a character that the stop cuts is left out
    assert (result.text, result.stop, result.finish_reason) == (kept, stop, "stop")
    assert "".join(event.text for event in events) == result.text
    assert MODEL.tokenizer.decode((await session.snapshot()).tokens) == "Hello" + result.text


async def test_scores_are_the_engines(backend: RuntimeEndpoint, fake: Tap) -> None:
    """Choices get the engine's own log-probabilities, and all go in one request."""
    embedded = EmbeddedBackend(MODEL)
    choices = [" yes", " no, never", " because"]
    here = await (await opened(embedded, "Is it? ")).score(choices, empty_context=True)
    there = await (await opened(backend, "Is it? ")).score(choices, empty_context=True)
    for one, other in zip(here.choices, there.choices, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.greedy_prefix == other.greedy_prefix
        assert one.unconditional[1:] == pytest.approx(other.unconditional[1:], abs=1e-4)
    assert len(fake.requests) == 1
    await embedded.aclose()


async def test_choices_that_end_differently_share_a_prompt(
    backend: RuntimeEndpoint, fake: Tap
) -> None:
    """A prompt for each beginning of a choice: none is sent for the last tokens, nor for a choice
    without a token; the numbers are the engine's."""
    embedded = EmbeddedBackend(MODEL)
    choices = [(7,), (8,), (9, 7), (9, 8), (9, 7, 8), ()]
    here = await (await opened(embedded, "Is it? ")).score(choices, empty_context=True)
    there = await (await opened(backend, "Is it? ")).score(choices, empty_context=True)
    for one, other in zip(here.choices, there.choices, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.unconditional[1:] == pytest.approx(other.unconditional[1:], abs=1e-4)
        assert one.greedy_prefix == other.greedy_prefix
    (request,) = fake.requests
    prompt = request["input_ids"][0]
    assert request["input_ids"] == [prompt, [*prompt, 9], [9], [*prompt, 9, 7], [9, 7]]
    assert request["token_ids_logprob"] == [[7, 8], [7, 8], [7, 8], [8], [8]]
    await embedded.aclose()


async def test_scoring_nothing_asks_nothing(backend: RuntimeEndpoint, fake: Tap) -> None:
    """Choices without a token need no request."""
    scored = await (await opened(backend, "Is it? ")).score([""])
    assert scored.choices[0].logprobs == ()
    assert fake.requests == []


async def test_a_text_that_nobody_reads_comes_whole(backend: RuntimeEndpoint, fake: Tap) -> None:
    """With `stream=False` one answer holds the step; tokens, text and session are as streamed."""
    _, streamed = await run(await opened(backend, "Once upon a time"))
    session = await opened(backend, "Once upon a time")
    events, whole = await run(session, replace(GREEDY, stream=False))
    assert [request["stream"] for request in fake.requests] == [True, False]
    assert (whole.tokens, whole.text) == (streamed.tokens, streamed.text)
    assert len(events) == 1
    assert (await session.snapshot()).tokens[-len(whole.tokens) :] == whole.tokens


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "(cat|dog) [0-9]{3}"),
        Constraint("choices", '["a.b", "c+d (e)"]'),
        Constraint("json_schema", '{"type":"object","properties":{"a":{"type":"boolean"}},'
                   '"required":["a"],"additionalProperties":false}'),
    ],
    ids=lambda constraint: constraint.kind,
)  # fmt: skip
async def test_constraints_hold(backend: RuntimeEndpoint, constraint: Constraint) -> None:
    """Each kind that the backend claims is sent, kept and accepted."""
    assert constraint.kind in backend.capabilities.constraints
    _, result = await run(
        await opened(backend, "x"), SamplingParams(seed=1, max_tokens=60), constraint
    )
    assert result.finish_reason == "stop"


async def test_the_embedded_engines_grammar_is_sent(backend: RuntimeEndpoint, fake: Tap) -> None:
    """A phloem server is sent the grammar that the engine here would use: Lark as it is, and a
    constraint after a text with its prelude."""
    lark = Constraint("lark", 'start: "ab" /[c-e]{2}/ "f"')
    _, result = await run(await opened(backend, "x"), SamplingParams(seed=3, max_tokens=60), lark)
    assert re.fullmatch("ab[c-e]{2}f", result.text)
    assert fake.requests[-1]["sampling_params"]["ebnf"] == lark.source
    later = Constraint("regex", "[0-9]{3}", after="e")
    await run(await opened(backend, "x"), GREEDY, later)
    assert "phloem_free" in fake.requests[-1]["sampling_params"]["ebnf"]


async def test_what_a_pattern_begins_with_goes_with_the_prompt(
    backend: RuntimeEndpoint, fake: Tap
) -> None:
    """The literal beginning is sent as tokens, the rest as the constraint; the result has both,
    and the next step finds them."""
    constraint = Constraint("regex", r'\{"order": "[0-9]{4}"\}')
    session = await opened(backend, "x")
    events, result = await run(session, SamplingParams(seed=1, max_tokens=60), constraint)
    assert re.fullmatch(constraint.source, result.text)
    assert "".join(event.text for event in events) == result.text
    (request,) = fake.requests
    size = result.usage.forced
    assert size > 0
    assert request["input_ids"][1:] == list(result.tokens[:size])
    assert request["sampling_params"]["max_new_tokens"] == 60 - size
    session.append([Text(" and")])
    _, later = await run(session)
    assert later.usage.reused > 1 + size
    again = await opened(backend, "x")
    _, counted = await run(again, SamplingParams(seed=1, max_tokens=60, logprobs=0), constraint)
    assert counted.usage.forced == 0
    assert len(counted.logprobs) == len(counted.tokens)


async def test_a_stop_in_what_is_put_in_ends_the_step(backend: RuntimeEndpoint, fake: Tap) -> None:
    """A stop text inside of the beginning ends the step, and nothing is asked."""
    session = await opened(backend, "x")
    params = SamplingParams(max_tokens=60, stop=('"o',))
    _, result = await run(session, params, Constraint("regex", r'\{"order": "[0-9]{4}"\}'))
    assert (result.text, result.stop) == ("{", '"o')
    assert fake.requests == []


async def test_a_server_that_ignores_a_constraint_is_an_error() -> None:
    """The text is checked; the session is as before."""
    with tapped(Tap(enforce=False)) as fake:
        backend = RuntimeEndpoint(fake.url, tokenizer=MODEL)
        session = await opened(backend, "Hello")
        before = await session.snapshot()
        with pytest.raises(EngineError, match="did not keep the regex"):
            await run(session, GREEDY, Constraint("regex", "[0-9]{4}"))
        assert await session.snapshot() == before
        await backend.aclose()


async def test_what_it_cannot_enforce_is_refused_before_a_request(
    backend: RuntimeEndpoint, fake: Tap
) -> None:
    """What no grammar can say alone, and what can't be enforced at all, never reaches a server."""
    session = await opened(backend, "x")
    schemas = ('{"type":"array","uniqueItems":true}', '{"type":"string","pattern":"(?=a)b"}')
    for schema in schemas:
        constraint = Constraint("json_schema", schema, after="then")
        with pytest.raises(ConstraintError):
            await run(session, GREEDY, constraint)
    assert fake.requests == []


async def test_leaving_a_stream_aborts_on_the_server(backend: RuntimeEndpoint, fake: Tap) -> None:
    """Closing the iterator posts /abort_request with the request's id."""
    session = await opened(backend, "Hello")
    stream = session.generate(SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True))
    async for _ in stream:
        break
    await stream.aclose()
    await backend.aclose()
    assert fake.aborted == [fake.requests[0]["rid"]]


async def test_cancel_ends_the_step(backend: RuntimeEndpoint, fake: Tap) -> None:
    """`cancel` makes the running step raise `Cancelled`, and tells the server."""
    session = await opened(backend, "Hello")
    params = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)
    step = session.generate(params)
    await anext(step)
    await session.cancel()
    with pytest.raises(Cancelled):
        await anext(step)
    _, after = await run(session)
    assert len(after.tokens) > 0
    await backend.aclose()
    assert fake.aborted == [fake.requests[0]["rid"]]


async def test_a_timeout_is_total(fake: Tap) -> None:
    """A step that streams on and on ends when its whole time is over."""
    backend = RuntimeEndpoint(fake.url, tokenizer=MODEL, timeout=0.2)
    session = await opened(backend, "Hello")
    with pytest.raises(DeadlineExceeded):
        await run(session, SamplingParams(temperature=0, max_tokens=3900, ignore_eos=True))
    await backend.aclose()


async def test_branches_draw_their_own_noise(backend: RuntimeEndpoint, fake: Tap) -> None:
    """The branch is mixed into the seed; equal branch and seed send equal seeds."""
    params = SamplingParams(seed=5, max_tokens=2)
    for branch in ("", "a", "b", "a"):
        _, result = await run(await opened(backend, "x", branch=branch), params)
        assert result.seed == 5
    seeds = [request["sampling_params"]["sampling_seed"] for request in fake.requests]
    assert seeds[0] == 5
    assert seeds[1] == seeds[3]
    assert len(set(seeds)) == 3


async def test_namespaces_go_as_extra_keys(backend: RuntimeEndpoint, fake: Tap) -> None:
    """Every kind of request carries the namespace, and nothing is shared across."""
    text = "A prefix that is long enough to be cached. " * 2
    first = await opened(backend, text, namespace="a")
    await run(first)
    await first.score([(7,), (8, 9)])
    await backend.prefill([Text(text)], namespace="a")
    assert [request["extra_key"] for request in fake.requests] == ["a", ["a", "a"], "a"]
    _, other = await run(await opened(backend, text, namespace="b"))
    assert other.usage.reused == 0


async def test_capabilities_say_what_the_server_has() -> None:
    """Without deterministic inference there are no seeds; without a grammar backend no masks."""
    info = {"enable_deterministic_inference": False, "grammar_backend": "none"} | SGLANG
    with tapped(Tap(info=info)) as fake:
        backend = RuntimeEndpoint(fake.url, tokenizer=MODEL)
        assert not backend.capabilities.seed
        assert backend.capabilities.constraints == frozenset()
        _, result = await run(await opened(backend, "x"), SamplingParams(seed=5, max_tokens=2))
        assert result.seed is None
        assert "sampling_seed" not in fake.requests[0]["sampling_params"]
        with pytest.raises(Unsupported, match="none"):
            await run(await opened(backend, "x"), GREEDY, Constraint("regex", "a"))
        await backend.aclose()


async def test_priorities_go_only_where_they_count() -> None:
    """A server without priority scheduling refuses a priority, so none is sent to it."""
    for able in (True, False):
        with tapped(Tap(info={"enable_priority_scheduling": able})) as fake:
            backend = RuntimeEndpoint(fake.url, tokenizer=MODEL)
            await run(await opened(backend, "x", priority=3))
            assert fake.requests[0].get("priority") == (3 if able else None)
            await backend.aclose()


async def test_too_long_is_refused_before_a_request(backend: RuntimeEndpoint, fake: Tap) -> None:
    """What can't fit raises with the numbers."""
    session = await opened(backend, "Hello")
    with pytest.raises(PromptTooLong, match="4096"):
        await run(session, SamplingParams(max_tokens=4096))
    assert fake.requests == []


@pytest.mark.parametrize("version", ["0.4.9", "0.6.0", "1.0.0", ""])
async def test_other_versions_are_refused(version: str) -> None:
    """The version is checked at the first contact."""
    with tapped(Tap(info=SGLANG | {"version": version})) as fake:
        backend = RuntimeEndpoint(fake.url, tokenizer=MODEL)
        with pytest.raises(EngineError, match="SGLang"):
            await backend.start()
