"""The OpenAI backend against phloem's own server on the tiny model, and against canned replies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from phloem.errors import ConfigError, EngineError, PhloemError, Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.api.function import function
from phloem.programs.api.primitives import gen, select
from phloem.programs.api.roles import assistant, system, user
from phloem.programs.protocol import SamplingParams, Special, StepResult, Text
from phloem.runtime.openai.backend import OpenAI
from tests.server.harness import Running, serving, tiny

from .canned import canned, reply, stream

PARAMS = SamplingParams(temperature=0, max_tokens=8)
SCHEMA = Constraint(
    "json_schema",
    '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],'
    '"additionalProperties":false}',
)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """One server for the module."""
    with serving(tiny()) as server:
        yield server


@pytest_asyncio.fixture
async def backend(running: Running) -> AsyncIterator[OpenAI]:
    """A backend on the server."""
    made = OpenAI(running.model, f"{running.url}/v1")
    yield made
    await made.aclose()


async def asked(backend: OpenAI, question: str = "Name a colour."):
    session = await backend.open("s")
    user_, assistant_ = backend.chat.prefix["user"], backend.chat.prefix["assistant"]
    session.append([*user_, Text(question), *backend.chat.suffix["user"], *assistant_])
    return session


async def run(session, params=PARAMS, constraint=None):
    *events, result = [item async for item in session.generate(params, constraint)]
    assert isinstance(result, StepResult)
    return events, result


async def test_an_answer_is_the_servers(backend: OpenAI, running: Running) -> None:
    """The streamed text is what the server answers to the same messages, with its counts."""
    events, result = await run(await asked(backend))
    whole = running.chat().json()
    assert result.text == whole["choices"][0]["message"]["content"]
    assert "".join(event.text for event in events) == result.text
    assert result.usage.prompt == whole["usage"]["prompt_tokens"]
    assert result.usage.generated == whole["usage"]["completion_tokens"]


async def test_schemas_hold(backend: OpenAI) -> None:
    """A JSON Schema goes as response_format, and the text is one of its language."""
    _, result = await run(await asked(backend), SamplingParams(max_tokens=60), SCHEMA)
    assert set(json.loads(result.text)) == {"a"}


@pytest.mark.parametrize(
    ("params", "constraint", "named"),
    [
        (PARAMS, Constraint("regex", "a"), "regex"),
        (PARAMS, Constraint("choices", '["a"]'), "choices"),
        (SamplingParams(top_k=5), None, "top_k"),
        (SamplingParams(logprobs=1, min_p=0.1), None, "logprobs, min_p"),
    ],
    ids=["regex", "choices", "top_k", "logprobs"],
)
async def test_what_it_cannot_do_is_refused_by_name(
    backend: OpenAI, params: SamplingParams, constraint: Constraint | None, named: str
) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(Unsupported, match=named):
        await run(await asked(backend), params, constraint)


async def test_only_messages_can_be_said(backend: OpenAI) -> None:
    """Text outside of a message, a begun answer and foreign special tokens are refused."""
    session = await backend.open("s")
    for segments in ([Text("plain")], [Special("<|im_start|>")], [*backend.chat.suffix["user"]]):
        with pytest.raises(Unsupported):
            session.append(segments)
    with pytest.raises(Unsupported, match="assistant messages only"):
        await run(session)
    begun = await asked(backend)
    begun.append([Text("Blue, ")])
    with pytest.raises(Unsupported, match="begun answer"):
        await run(begun)
    with pytest.raises(Unsupported, match="score"):
        await begun.score(["a"])
    with pytest.raises(Unsupported, match="tokens"):
        backend.count("a")


def test_a_program_runs_on_it(running: Running) -> None:
    """Roles, two turns and a branch of a program work; a select is refused by name."""

    @function
    def talk(s):
        s += system("Be brief.")
        s += user("Name a colour.")
        s += assistant(gen("first", max_tokens=4, temperature=0))
        s += user("And another.")
        s += assistant(gen("second", max_tokens=4, temperature=0))
        return s["second"]

    @function
    def choose(s):
        s += user("Which?")
        s += assistant(select("which", ["a", "b"]))

    backend = OpenAI(running.model, f"{running.url}/v1")
    state = talk.run(backend=backend)
    assert state.value == state["second"]
    assert [message["role"] for message in state.messages()] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    with pytest.raises(Unsupported, match="score"):
        choose.run(backend=backend)


def _chunk(content: str, reason: str | None) -> str:
    return json.dumps({"choices": [{"delta": {"content": content}, "finish_reason": reason}]})


@pytest.mark.parametrize(
    ("answer", "constraint", "said"),
    [
        (reply(400, '{"error": {"message": "no such model"}}'), None, "400.*no such model"),
        (reply(502, "<html>", "text/html"), None, "502.*<html>"),
        (stream(_chunk("He", None)), None, "broke"),
        (stream('{"error": {"message": "died"}}'), None, "died"),
        (stream(_chunk("", "content_filter")), None, "content_filter"),
        (reply(200, f"data: {_chunk('He', None)}\n\ndata: [DONE]\n\n"), None, "finish_reason"),
        (reply(200, f"data: {_chunk('Hello', 'stop')}\n\ndata: [DONE]\n\n"), SCHEMA, "not keep"),
        (reply(200, f"data: {_chunk('{}', 'stop')}\n\ndata: [DONE]\n\n"), SCHEMA, "not keep"),
    ],
    ids=["400", "502", "cut", "error", "filter", "endless", "no-json", "other-json"],
)
async def test_failures_say_what_the_server_said(
    answer: bytes, constraint: Constraint | None, said: str
) -> None:
    """Statuses, broken streams and ignored constraints are errors; the messages are as before."""
    async with canned({"/v1/chat/completions": answer}) as server:
        backend = OpenAI("m", f"{server.url}/v1")
        session = await asked(backend)
        before = session._dialogue.copy().request()
        with pytest.raises(EngineError, match=said):
            await run(session, PARAMS, constraint)
        assert session._dialogue.request() == before
        await backend.aclose()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(200, "<html>log in</html>", "text/html"), "answered text/html.*log in"),
        (reply(200, '{"choices": []}'), "answered application/json"),
        (reply(307, "", extra="Location: http://other/v1"), "307"),
    ],
    ids=["page", "whole", "moved"],
)
async def test_what_answers_in_place_of_the_server_is_told(answer: bytes, said: str) -> None:
    """A page of a proxy, a reply in one piece and an address that moved are told as such."""
    async with canned({"/v1/chat/completions": answer}) as server:
        backend = OpenAI("m", f"{server.url}/v1")
        with pytest.raises(EngineError, match=said) as caught:
            await run(await asked(backend))
        assert caught.value.hint == "give the address that it names: http://other/v1" or (
            "is this the address" in str(caught.value.hint)
        )
        await backend.aclose()


async def test_an_answer_that_has_ended_is_whole_without_the_last_event() -> None:
    """Some servers close the stream after the finish_reason."""
    body = f"data: {_chunk('Hello', 'stop')}\n\n"
    async with canned({"/v1/chat/completions": reply(200, body, "text/event-stream")}) as server:
        backend = OpenAI("m", f"{server.url}/v1")
        _, result = await run(await asked(backend))
        assert (result.text, result.finish_reason) == ("Hello", "stop")
        await backend.aclose()


async def test_no_tokens_are_not_asked_for() -> None:
    """An answer of no tokens is empty, and costs no request: servers refuse max_tokens 0."""
    async with canned({}) as server:
        backend = OpenAI("m", f"{server.url}/v1")
        _, result = await run(await asked(backend), SamplingParams(max_tokens=0))
        assert (result.text, result.finish_reason, server.asked) == ("", "length", [])
        await backend.aclose()


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_no_error_shows_the_key(status: int) -> None:
    """A key that the server quotes is masked."""
    quoted = '{"error": {"message": "Incorrect API key sk-secret-1"}}'
    async with canned({"/v1/chat/completions": reply(status, quoted)}) as server:
        backend = OpenAI("m", f"{server.url}/v1", "sk-secret-1")
        with pytest.raises(PhloemError, match=r"API key \*\*\*") as caught:
            await run(await asked(backend))
        assert "secret" not in str(caught.value)
        assert "secret" not in repr(caught.value.details)
        await backend.aclose()


@pytest.mark.parametrize("key", ["sk-secret\n", "sk secret", "sk-sécret"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    """A line end from a file, for one, is told at once, without the key."""
    with pytest.raises(ConfigError, match="API key") as caught:
        OpenAI("m", "http://127.0.0.1:1/v1", key)
    assert "cret" not in str(caught.value)


def test_an_empty_address_is_none() -> None:
    """It does not mean OpenAI's own, which would be sent another server's key and prompts."""
    with pytest.raises(ConfigError, match="address"):
        OpenAI("m", "", "key")


async def test_white_space_in_json_is_the_servers_choice() -> None:
    """A valid text with blanks and newlines is accepted."""
    text = '{\n  "a": true\n}'
    body = f"data: {_chunk(text, 'stop')}\n\ndata: [DONE]\n\n"
    async with canned({"/v1/chat/completions": reply(200, body)}) as server:
        backend = OpenAI("m", f"{server.url}/v1")
        _, result = await run(await asked(backend), PARAMS, SCHEMA)
        assert result.text == text
        await backend.aclose()


def test_openais_own_address_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key there is an error at once, not a 401 later."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="key"):
        OpenAI("gpt-4o-mini")


def test_it_needs_no_torch() -> None:
    """The chat backend is imported without torch."""
    code = "import sys, phloem.runtime.openai.backend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
