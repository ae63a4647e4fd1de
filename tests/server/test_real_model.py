"""The official client against the server on the real model: the answers make sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

import phloem as ph
from phloem.runtime.embedded import EmbeddedBackend
from tests.server.harness import Running, serving

pytestmark = pytest.mark.model

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@ph.function
def answer(s: ph.State, question: str) -> str:
    """Sorts a question, then answers it."""
    s += ph.user(question)
    s += ph.assistant("Topic: " + ph.select("topic", ["geography", "cooking"]))
    s += ph.user("Now answer.")
    s += ph.assistant(ph.gen("said", max_tokens=24, temperature=0))
    return f"{s['topic']}: {s['said']}"


class City(BaseModel):
    name: str
    continent: Literal["Europe", "Asia"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    # In float32 the greedy answer is the reference's; in bfloat16 its first token is another.
    with serving(EmbeddedBackend(dtype="float32"), [answer]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat_answers_and_streams_the_same(client: openai.OpenAI) -> None:
    """A greedy answer is right, ends by itself, and is the same as a stream."""
    asked: dict[str, Any] = {
        "model": "default", "messages": QUESTION, "temperature": 0, "max_tokens": 40
    }  # fmt: skip
    reply = client.chat.completions.create(**asked)
    text = reply.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    assert reply.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(**asked, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == text
    again = client.chat.completions.create(**asked)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached >= again.usage.prompt_tokens - 1


def test_parse_and_tools_obey(client: openai.OpenAI) -> None:
    """A model of 135M obeys a schema and a required tool, because it can't do otherwise."""
    parsed = client.chat.completions.parse(
        model="default", messages=QUESTION, response_format=City, temperature=0, max_tokens=60
    ).choices[0].message.parsed  # fmt: skip
    assert parsed is not None
    assert parsed.continent in {"Europe", "Asia"}
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_temp",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for choice in ("required", {"type": "function", "function": {"name": "get_temp"}}):
        reply = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Hello, how are you?"}],
            tools=[tool], tool_choice=choice, temperature=0, max_tokens=60,
        )  # fmt: skip
        assert reply.choices[0].finish_reason == "tool_calls"
        calls = reply.choices[0].message.tool_calls
        assert calls is not None
        assert set(json.loads(calls[0].function.arguments)) == {"city"}


def test_logprobs_are_of_the_greedy_tokens(client: openai.OpenAI) -> None:
    """Each greedy token is the best of its alternatives, and its bytes join to the text."""
    reply = client.chat.completions.create(
        model="default", messages=QUESTION, temperature=0, max_tokens=8, logprobs=True,
        top_logprobs=2,
    )  # fmt: skip
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for token in logprobs.content:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)
    joined = b"".join(bytes(token.bytes or []) for token in logprobs.content).decode()
    assert joined == reply.choices[0].message.content


def test_a_program_reuses_its_own_prefix(server: Running, client: openai.OpenAI) -> None:
    """A program behind the chat endpoint answers, and prefills no token twice."""
    reply = client.chat.completions.create(model="program:answer", messages=QUESTION, seed=1)
    text = reply.choices[0].message.content
    assert text is not None
    assert text.startswith(("geography: ", "cooking: "))
    run = server.run("answer", args={"question": "What is the capital of France?"}).json()
    assert run["status"] == "succeeded"
    assert run["usage"]["prefilled"] < 10
