"""POST /v1/chat/completions, over HTTP, on the tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phloem.programs.protocol import StepResult, TokenEvent, Usage
from phloem.runtime.model.tiny import tiny_tokenizer
from phloem.server.generation.job import coalesced
from phloem.server.openai.chat_reply import ChatChunk, ChunkChoice, ChunkWriter, Delta
from tests.server.harness import Running, chunks

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer"}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}
LONG = {
    "type": "object",
    "properties": {"s": {"type": "string", "minLength": 200, "maxLength": 200}},
    "required": ["s"],
    "additionalProperties": False,
}


def streamed(server: Running, **body: Any) -> list[dict[str, Any]]:
    return chunks(server.chat(stream=True, **body).text)


def joined(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices if c["index"] == index)


def test_a_stream_joins_to_the_whole_reply(server: Running) -> None:
    """The pieces of a stream joined equal the reply that is not streamed."""
    whole = server.chat(max_tokens=40).json()["choices"][0]
    events = streamed(server, max_tokens=40)
    assert joined(events) == whole["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "length"
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len(events) > 10


def test_candidates_of_a_stream_keep_their_index(server: Running) -> None:
    """n=3 streams under index 0 to 2, each with its own end, and equals the whole reply."""
    asked = {"n": 3, "temperature": 1, "max_tokens": 12, "seed": 7}
    whole = server.chat(**asked).json()
    events = streamed(server, stream_options={"include_usage": True}, **asked)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [joined(events, index) for index in range(3)] == texts
    assert len(set(texts)) == 3
    ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert whole["usage"]["prompt_tokens"] == server.chat().json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("extra", [{}, {"n": 2, "temperature": 1}, {"stop": ["e", "o", "a", "�"]}])
def test_usage_of_a_stream_is_one_last_chunk(server: Running, extra: dict[str, Any]) -> None:
    """With include_usage one last chunk without choices has the counts; without, none has."""
    asked = {"max_tokens": 7, "seed": 1, **extra}
    whole = server.chat(**asked).json()["usage"]
    events = streamed(server, stream_options={"include_usage": True}, **asked)
    assert [event["choices"] for event in events if event.get("usage")] == [[]]
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == whole["completion_tokens"]
    assert all("usage" not in event for event in streamed(server, **asked))


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_tokens": ..., "max_completion_tokens": 3}, 3),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 9, "max_completion_tokens": 3}, 3),
    ],
)
def test_both_names_of_the_limit_hold(server: Running, limits: dict[str, Any], most: int) -> None:
    """max_completion_tokens limits like max_tokens and wins over it."""
    reply = server.chat(**limits).json()
    assert reply["usage"]["completion_tokens"] == most
    assert reply["choices"][0]["finish_reason"] == "length"


def test_cached_tokens_count_the_reused_prefix(server: Running) -> None:
    """A prompt sent again reports all but at most one of its tokens as cached."""
    server.chat()
    usage = server.chat().json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 1


def test_logprobs_name_the_chosen_token_and_alternatives(server: Running) -> None:
    """With logprobs every token has its log-probability, the greedy one being the best."""
    reply = server.chat(logprobs=True, top_logprobs=3, max_tokens=5).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    for token in content:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] == max(top["logprob"] for top in token["top_logprobs"]) <= 0
    events = streamed(server, logprobs=True, top_logprobs=3, max_tokens=5)
    parts = [c["logprobs"]["content"] for e in events for c in e["choices"] if c.get("logprobs")]
    assert [token for part in parts for token in part] == content


def test_logprobs_tell_the_bytes_of_parts_of_characters(server: Running) -> None:
    """The bytes of the tokens make up the text, whole and streamed, also where no token is a whole
    character."""
    asked: Any = {"regex": "[🦊]{2}", "logprobs": True, "top_logprobs": 1, "max_tokens": 40}
    choice = server.chat(**asked).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == "🦊🦊"
    assert any("\ufffd" in token["token"] for token in content)
    told = [token["bytes"] for token in content]
    assert bytes(byte for one in told for byte in one).decode() == "🦊🦊"
    events = streamed(server, **asked)
    parts = [c["logprobs"]["content"] for e in events for c in e["choices"] if c.get("logprobs")]
    assert [token["bytes"] for part in parts for token in part] == told


def test_a_seed_repeats_whatever_runs_beside_it(server: Running) -> None:
    """A seeded request gives the same text alone and beside unseeded ones."""
    asked = {"temperature": 1, "seed": 1234, "max_tokens": 16}
    alone = {server.chat(**asked).json()["choices"][0]["message"]["content"] for _ in range(3)}
    four = [c["message"]["content"] for c in server.chat(n=4, **asked).json()["choices"]]
    again = [c["message"]["content"] for c in server.chat(n=4, **asked).json()["choices"]]
    assert len(alone) == 1
    assert four == again
    assert len(set(four)) == 4


def test_json_schema_replies_fit_the_schema(server: Running) -> None:
    """response_format json_schema gives JSON of the schema."""
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}
    reply = server.chat(response_format=form, max_tokens=200, temperature=1, seed=3).json()
    value = json.loads(reply["choices"][0]["message"]["content"])
    assert value["colour"] in {"red", "blue"}
    assert isinstance(value["n"], int)
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_json_object_replies_are_objects(server: Running) -> None:
    """response_format json_object gives an object, or the beginning of one."""
    reply = server.chat(response_format={"type": "json_object"}, max_tokens=60).json()
    content, reason = (
        reply["choices"][0]["message"]["content"],
        reply["choices"][0]["finish_reason"],
    )
    assert content.startswith("{")
    assert reason == "length" or isinstance(json.loads(content), dict)


def test_a_cut_structure_says_length(server: Running) -> None:
    """A schema that needs more than max_tokens ends with "length" and a valid beginning."""
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": LONG}}
    reply = server.chat(response_format=form, max_tokens=10).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] <= 10
    assert reply["choices"][0]["message"]["content"].startswith('{"s":"')


def test_regex_replies_match(server: Running) -> None:
    """The regex extension gives a full match."""
    reply = server.chat(regex="(red|blue) [0-9]{2}", max_tokens=20).json()
    colour, _, number = reply["choices"][0]["message"]["content"].partition(" ")
    assert colour in {"red", "blue"}
    assert len(number) == 2
    assert number.isdigit()


def test_messages_of_every_shape_work(server: Running) -> None:
    """Content parts, an empty assistant turn, and a developer message are fine."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "refusal": None, "annotations": []},
        {"role": "user", "content": "two"},
    ]
    assert server.chat(messages=parts).status_code == 200
    assert server.chat(messages=turns).status_code == 200


def test_a_message_cannot_end_its_turn(server: Running) -> None:
    """Special tokens spelled in a message are ordinary text: they cost more than one token."""
    plain = server.chat(messages=[{"role": "user", "content": ""}]).json()["usage"]["prompt_tokens"]
    spelled = server.chat(messages=[{"role": "user", "content": "<|im_end|>"}]).json()["usage"]
    assert spelled["prompt_tokens"] > plain + 1


def test_text_chunks_are_written_as_the_model_would() -> None:
    """The short way to write a chunk of text says the same as the model of chunks."""
    writer = ChunkWriter('a "model"')
    for text in ("plain", 'quotes " and \\ and \n', "é\u2028\x00", ""):
        choice = ChunkChoice(index=3, delta=Delta(content=text), finish_reason=None)
        short, long = (json.loads(e[6:]) for e in (writer.text(3, text), writer.choice(choice)))
        assert short == long
        assert ChatChunk.model_validate(short)


def test_tokens_that_wait_are_sent_as_one() -> None:
    """Events of one candidate that came one after the other become one; results stay."""
    a, b, c = (TokenEvent(text, (ord(text),)) for text in "abc")
    result = StepResult("ab", (97, 98), "stop", Usage())
    items = [(0, a), (0, b), (1, c), (0, result), (1, result)]
    both = TokenEvent("ab", (97, 98))
    assert coalesced(items) == [(0, both), (1, c), (0, result), (1, result)]


def test_prompts_may_be_token_ids(server: Running) -> None:
    """A prompt of ids gives what its text gives, alone and among several; wrong ids are a 400."""
    text = "Name a colour."
    ids = tiny_tokenizer().encode(text)

    def complete(prompt: Any) -> Any:
        body = {"model": server.model, "prompt": prompt, "max_tokens": 6, "temperature": 0}
        return server.client.post("/v1/completions", json=body)

    whole = complete(text).json()
    alone = complete(ids).json()
    assert alone["choices"] == whole["choices"]
    assert alone["usage"]["prompt_tokens"] == len(ids) == whole["usage"]["prompt_tokens"]
    several = complete([ids, ids]).json()["choices"]
    assert [one["text"] for one in several] == [whole["choices"][0]["text"]] * 2
    for wrong in ([10**6], [-1], [True], [[]], [1, "a"]):
        reply = complete(wrong)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]
