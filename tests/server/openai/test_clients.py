"""The official clients against the server: what they send is understood, what they get fits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from huggingface_hub import InferenceClient
from pydantic import BaseModel, ConfigDict

from tests.server.harness import Running

ASK = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    answer: Literal["yes", "no"]
    sure: bool


def test_chat_and_models(client: openai.OpenAI, server: Running) -> None:
    """models.list and a plain chat completion parse into the client's types."""
    assert server.model in {model.id for model in client.models.list()}
    reply = client.chat.completions.create(
        model=server.model, messages=ASK, max_completion_tokens=5, temperature=0, seed=1
    )
    assert reply.choices[0].message.content is not None
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5
    assert reply.usage.prompt_tokens_details is not None


def test_streams(client: openai.OpenAI, server: Running) -> None:
    """The client's stream helper gathers the same text, and the usage of the last chunk."""
    asked = {"model": server.model, "messages": ASK, "max_tokens": 20, "temperature": 0}
    # The helper refuses replies that were cut, so this one has an end.
    extra = {"regex": "[a-z]{8}"}
    whole = client.chat.completions.create(**asked, extra_body=extra)
    with client.chat.completions.stream(
        **asked, extra_body=extra, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage is not None


def test_parse_gives_the_model(client: openai.OpenAI, server: Running) -> None:
    """The parse helper returns an instance of the pydantic model."""
    reply = client.chat.completions.parse(
        model=server.model, messages=ASK, response_format=Verdict, max_tokens=50, seed=1
    )
    parsed = reply.choices[0].message.parsed
    assert parsed is not None
    assert parsed.answer in {"yes", "no"}


def test_parse_of_a_cut_reply_says_so(client: openai.OpenAI, server: Running) -> None:
    """A structured reply cut by the limit raises the client's own error for that."""
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=server.model, messages=ASK, response_format=Verdict, max_tokens=2
        )


def test_tools(client: openai.OpenAI, server: Running) -> None:
    """A required tool call has its name and JSON arguments, whole and streamed."""
    reply = client.chat.completions.create(
        model=server.model, messages=ASK, tools=[WEATHER], tool_choice="required", max_tokens=80,
        seed=2,
    )  # fmt: skip
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "weather"
    assert set(json.loads(calls[0].function.arguments)) == {"city"}
    with client.chat.completions.stream(
        model=server.model, messages=ASK, tools=[WEATHER], tool_choice="required", max_tokens=80,
        seed=2,
    ) as stream:  # fmt: skip
        stream.until_done()
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.arguments == calls[0].function.arguments


def test_logprobs(client: openai.OpenAI, server: Running) -> None:
    """logprobs parse into the client's types, one entry a token."""
    reply = client.chat.completions.create(
        model=server.model, messages=ASK, max_tokens=3, temperature=0, logprobs=True,
        top_logprobs=2, extra_body={"ignore_eos": True},
    )  # fmt: skip
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [2, 2, 2]


def test_completions(client: openai.OpenAI, server: Running) -> None:
    """Text completions work whole and streamed, with several prompts."""
    reply = client.completions.create(
        model=server.model, prompt=["One", "Two"], max_tokens=4, temperature=0, logprobs=1
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    pieces = client.completions.create(
        model=server.model, prompt="One", max_tokens=4, temperature=0, stream=True
    )
    text = "".join(piece.choices[0].text for piece in pieces)
    assert text == reply.choices[0].text


def test_errors_raise_the_clients_own_types(client: openai.OpenAI, server: Running) -> None:
    """404 and 400 raise NotFoundError and BadRequestError with code and param."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=server.model, messages=ASK, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=server.model, messages=ASK, max_tokens=10**6)
    assert long.value.code == "prompt_too_long"


async def test_many_at_once(server: Running) -> None:
    """The async client's parallel streams are each as they are alone."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model=server.model, stream=True, max_tokens=16, temperature=0,
                messages=[{"role": "user", "content": f"Count from {number}"}],
            )  # fmt: skip
            return "".join([part.choices[0].delta.content or "" async for part in stream])

        together = await asyncio.gather(*(one(number) for number in range(16)))
        alone = [await one(number) for number in range(16)]
    assert together == alone


def test_hugging_face_client(server: Running) -> None:
    """huggingface_hub's client chats, streams, and gets structured replies."""
    client = InferenceClient(base_url=server.url)
    reply = client.chat_completion(ASK, max_tokens=4, temperature=0.0)
    text = reply.choices[0].message.content
    stream = client.chat_completion(ASK, max_tokens=4, temperature=0.0, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == text
    form = {
        "type": "json_schema",
        "json_schema": {"name": "v", "schema": Verdict.model_json_schema(), "strict": True},
    }
    structured = client.chat_completion(ASK, max_tokens=50, response_format=form, seed=1)
    assert Verdict.model_validate_json(structured.choices[0].message.content or "")
