"""The SGLang backend against a real SGLang server, beyond the conformance suite."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

import phloem as ph
from phloem.errors import Cancelled, PromptTooLong, Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.executor.loop import call
from phloem.programs.protocol import SamplingParams, Snapshot, StepResult, Text
from phloem.runtime.sglang.backend import RuntimeEndpoint
from tests.sglang_server import tokenizer

pytestmark = pytest.mark.sglang
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SCHEMA = (
    '{"type":"object","properties":{"city":{"enum":["Rome","Paris"]},"ok":{"type":"boolean"}},'
    '"required":["city","ok"],"additionalProperties":false}'
)
FOX = "The quick brown fox jumps over the lazy dog and runs far away into the deep forest. " * 5


@pytest_asyncio.fixture
async def backend(sglang_url: str) -> AsyncIterator[RuntimeEndpoint]:
    """A backend on the server."""
    made = RuntimeEndpoint(sglang_url, tokenizer=tokenizer())
    yield made
    await made.aclose()


async def run(session, params=GREEDY, constraint=None) -> StepResult:
    *_, result = [item async for item in session.generate(params, constraint)]
    return result


async def opened(backend, text, **options):
    session = await backend.open("s", **options)
    session.append([Text(text, heal=False)])
    return session


async def test_every_step_reuses_all_that_came_before(backend: RuntimeEndpoint) -> None:
    """Constrained output, which is often not the tokenizer's own, is found in the cache too."""
    session = await opened(backend, FOX, namespace="reuse")
    known = 0
    for constraint in (None, Constraint("regex", "[a-z]{9}"), Constraint("json_schema", SCHEMA)):
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=constraint is None)
        result = await run(session, params, constraint)
        assert result.usage.reused >= known - 1
        known = result.usage.prompt + len(result.tokens) - 1
        session.append([Text(" And then: ")])


async def test_forks_compute_a_new_prefix_once(backend: RuntimeEndpoint) -> None:
    """The first fork computes the prefix, read as it comes or not; no other computes it again."""
    size = backend.count(FOX)
    for stream in (True, False):
        session = await opened(backend, FOX, namespace=uuid.uuid4().hex)
        forks = await session.fork(3)
        for number, fork in enumerate(forks):
            fork.append([Text(f" Branch {number}.")])
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stream=stream)
        first, *others = await asyncio.gather(*(run(fork, params) for fork in forks))
        assert first.usage.reused == 0
        assert all(result.usage.reused >= size - 2 for result in others)
        assert all(result.usage.generated == 8 for result in (first, *others))


async def test_namespaces_share_nothing(backend: RuntimeEndpoint) -> None:
    """The same prompt in another namespace finds nothing in the cache."""
    await run(await opened(backend, FOX, namespace="one"))
    again = await run(await opened(backend, FOX, namespace="one"))
    other = await run(await opened(backend, FOX, namespace="two"))
    assert again.usage.reused > 0
    assert other.usage.reused == 0


async def test_scores_are_those_of_teacher_forcing(
    backend: RuntimeEndpoint, sglang_url: str
) -> None:
    """One batched request gives each choice what a request of its own gives, token by token."""
    choices = [" Paris", " the city of London", " 42"]
    text = "The capital of France is"
    scored = await (await opened(backend, text)).score(choices)
    prompt = backend._connect().text.tokenizer.encode(text)
    async with httpx.AsyncClient(base_url=sglang_url, timeout=60) as client:
        for choice in scored.choices:
            body = {
                "input_ids": prompt + list(choice.tokens), "return_logprob": True,
                "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            }  # fmt: skip
            meta = (await client.post("/generate", json=body)).json()["meta_info"]
            alone = [entry[0] for entry in meta["input_token_logprobs"][-len(choice.tokens) :]]
            assert choice.logprobs == pytest.approx(alone, abs=0.1)  # bf16, in another batch
    best = max(scored.choices, key=lambda choice: math.fsum(choice.logprobs) / len(choice.tokens))
    assert best.text == " Paris"
    assert best.greedy_prefix == 1


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "(cat|dog) [0-9]{3}"),
        Constraint("choices", '["a.b", "c+d (e)"]'),
        Constraint("json_schema", SCHEMA),
        Constraint("lark", 'start: "ab" /[c-e]{2}/ "f"'),
        Constraint("regex", "[0-9]{3}", after="."),
    ],
    ids=lambda constraint: constraint.kind + ("-after" if constraint.after else ""),
)
async def test_constraints_hold(backend: RuntimeEndpoint, constraint: Constraint) -> None:
    """Each kind that the server's grammar backend has is kept; the others are refused by name."""
    session = await opened(backend, "The capital of France is")
    params = SamplingParams(temperature=0, max_tokens=80)
    if constraint.kind not in backend.capabilities.constraints:
        with pytest.raises(Unsupported, match="llguidance"):
            await run(session, params, constraint)
        return
    result = await run(session, params, constraint)
    assert result.finish_reason == "stop"


async def test_a_pattern_is_asked_for_in_pieces(backend: RuntimeEndpoint) -> None:
    """What is forced is put in, with a request for each piece: the text is the pattern's, and the
    session's tokens are those that the server has computed."""
    constraint = Constraint("regex", r'\{"tool": "(search|lookup|count)", "row": "[0-9]{2}"\}')
    session = await opened(backend, FOX + "The call is ", namespace="pieces")
    result = await run(session, SamplingParams(temperature=0, max_tokens=64), constraint)
    assert re.fullmatch(constraint.source, result.text)
    assert result.finish_reason == "stop"
    assert backend.count('{"tool": "') < result.usage.forced < len(result.tokens)
    session.append([Text(" And then: ")])
    after = await run(session)
    assert after.usage.reused >= result.usage.prompt + len(result.tokens) - 3


async def test_a_cancelled_step_ends_on_the_server(
    backend: RuntimeEndpoint, sglang_url: str
) -> None:
    """After a cancel the server soon runs nothing."""
    session = await opened(backend, "Once upon a time")
    step = session.generate(SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True))
    await anext(step)
    await session.cancel()
    with pytest.raises(Cancelled):
        await anext(step)
    await idle(sglang_url)


CLIENT = """
import asyncio, sys
from phloem.programs.protocol import SamplingParams, Text
from phloem.runtime.sglang.backend import RuntimeEndpoint

async def main():
    session = await RuntimeEndpoint(sys.argv[1], tokenizer=sys.argv[2] or None).open("s")
    session.append([Text("Once upon a time")])
    params = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)
    async for _ in session.generate(params):
        print("runs", flush=True)

asyncio.run(main())
"""


async def test_the_step_of_a_killed_client_ends_on_the_server(sglang_url: str) -> None:
    """A client that is gone, without a word, leaves nothing that runs."""
    arguments = ("-c", CLIENT, sglang_url, tokenizer() or "")
    client = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"runs\n"
    client.kill()
    await client.communicate()
    await idle(sglang_url)


async def test_the_context_may_be_filled(backend: RuntimeEndpoint) -> None:
    """The server takes as many tokens as it reports; what goes beyond is refused before."""
    size = backend.capabilities.max_context
    fits = await backend.restore(
        Snapshot(backend.capabilities.fingerprint, (42,) * (size - 2)), "s"
    )
    assert len((await run(fits, replace(GREEDY, max_tokens=2))).tokens) <= 2
    with pytest.raises(PromptTooLong, match=str(size)):
        await run(fits, replace(GREEDY, max_tokens=2))


async def idle(url: str) -> None:
    """Wait until the server runs nothing: it refuses to flush while anything does."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        for _ in range(60):
            if (await client.post("/flush_cache")).status_code == 200:
                return
            await asyncio.sleep(0.25)
    raise AssertionError("the step still runs")


def test_a_whole_program_runs(sglang_url: str) -> None:
    """Roles, a choice, forks, a regex and a schema, by the public face."""

    @ph.function
    def agent(s, question):
        s += ph.user(question)
        s += ph.assistant(ph.select("verdict", ["yes", "no"]))
        forks = s.fork(2)
        for fork in forks:
            fork += ph.user("Why?")
            fork += ph.assistant(ph.gen("why", max_tokens=6, temperature=0, ignore_eos=True))
        s += ph.user("Which city?")
        s += ph.assistant(ph.gen("city", schema=SCHEMA, max_tokens=60, temperature=0))
        return [fork["why"] for fork in forks]

    backend = ph.RuntimeEndpoint(sglang_url, tokenizer=tokenizer())
    state = agent.run(question="Is grass green?", backend=backend)
    call(backend.aclose())
    assert state["verdict"] in {"yes", "no"}
    assert len(state.value) == 2
    assert set(state["city"]) >= {"city", "ok"}
