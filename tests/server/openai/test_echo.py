"""Completions that begin with their prompt, as evaluation harnesses ask for them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from phloem.programs.testing import ScriptedBackend
from phloem.runtime.model.tiny import tiny_model
from tests.server.harness import Running, chunks, serving, tiny

PROMPT = "Once upon a time"


def complete(server: Running, **body: Any) -> Any:
    asked = {"model": server.model, "prompt": PROMPT, "temperature": 0, "echo": True, **body}
    return server.client.post("/v1/completions", json=asked)


def test_the_scores_of_an_echo_are_those_of_the_output(server: Running) -> None:
    """What was generated has the same log-probabilities when it is sent back as a prompt, and each
    token is its place's best."""
    tokens = tiny_model().tokenizer.encode(PROMPT)
    asked = {"prompt": tokens, "max_tokens": 6, "ignore_eos": True, "logprobs": 1}
    first = complete(server, **asked, echo=False).json()
    sampling = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": tokens, "sampling_params": sampling}
    made = server.client.post("/generate", json=body).json()["output_ids"]
    reply = complete(server, prompt=tokens + made, max_tokens=0, logprobs=1).json()
    [choice] = reply["choices"]
    listed = choice["logprobs"]
    assert choice["finish_reason"] == "length"
    assert choice["text"] == PROMPT + first["choices"][0]["text"]
    assert listed["token_logprobs"][0] is listed["top_logprobs"][0] is None
    generated = first["choices"][0]["logprobs"]["token_logprobs"]
    assert listed["token_logprobs"][-6:] == pytest.approx(generated, abs=1e-3)
    for text, logprob, top in zip(
        listed["tokens"][-6:], listed["token_logprobs"][-6:], listed["top_logprobs"][-6:],
        strict=True,
    ):  # fmt: skip
        assert max(top.values()) == top[text] == logprob
    assert reply["usage"]["prompt_tokens"] == len(listed["tokens"]) == len(tokens) + 6
    assert reply["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("logprobs", [None, 0, 1])
@pytest.mark.parametrize("most", [0, 3])
def test_a_stream_joins_to_the_whole(server: Running, logprobs: int | None, most: int) -> None:
    """Text, tokens and offsets of an echo and its output follow each other, for every candidate,
    streamed or not."""
    body = {"prompt": [PROMPT, "A second one"], "max_tokens": most, "n": 2, "seed": 1}
    body |= {} if logprobs is None else {"logprobs": logprobs}
    whole = complete(server, **body).json()["choices"]
    pieces = chunks(complete(server, **body, stream=True).text)
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]
    for choice in whole:
        own = [one["choices"][0] for one in pieces if one["choices"][0]["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert choice["text"].startswith(body["prompt"][choice["index"] // 2])
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        for part in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            joined = [item for one in own if one["logprobs"] for item in one["logprobs"][part]]
            assert joined == choice["logprobs"][part]
        listed = choice["logprobs"]
        assert "".join(listed["tokens"]) == choice["text"]
        ends = [len("".join(listed["tokens"][:at])) for at in range(len(listed["tokens"]))]
        assert listed["text_offset"] == ends


def test_a_harness_reads_the_likelihood_of_an_ending(server: Running) -> None:
    """The official client gets what lm-eval's `local-completions` slices: the numbers of the
    ending, between those of the context and of the one token that it has to ask for."""
    encode = tiny_model().tokenizer.encode
    context, ending = encode("Question: red or blue? Answer:"), encode(" blue")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.completions.create(
            model=server.model, prompt=[context + ending], echo=True, max_tokens=1, logprobs=1,
            temperature=0, seed=1234,
        )  # fmt: skip
    found = reply.choices[0].logprobs
    assert found is not None
    assert len(found.token_logprobs or ()) == len(context) + len(ending) + 1
    part = (found.token_logprobs or [])[len(context) : -1]
    assert len(part) == len(ending)
    assert all(value <= 0 for value in part)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_tokens": 0, "logprobs": 1, "prompt": [10**6]}, "prompt"),
        ({"max_tokens": 0, "logprobs": 1, "prompt": "! " * 5000}, "prompt"),
        ({"max_tokens": 0, "prompt": ""}, "prompt"),
    ],
)
def test_what_no_echo_can_be_is_refused(server: Running, body: dict[str, Any], param: str) -> None:
    """Nothing to tell back, unknown tokens and more alternatives than are known are a 400."""
    reply = complete(server, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_an_engine_without_tokens_refuses() -> None:
    """An engine that can't spell tokens says that it tells no prompts back."""
    with serving(ScriptedBackend(["x"])) as server:
        reply = complete(server, max_tokens=0)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "echo")


def test_a_score_is_counted_as_one_request() -> None:
    """A request that only scores is one of its kind, with the prompt's tokens."""
    with serving(tiny()) as server:
        prompt = complete(server, max_tokens=0, logprobs=1).json()["usage"]["prompt_tokens"]
        complete(server, max_tokens=2, logprobs=1)
        counted = server.metric("phloem_request_seconds_count", kind="completion")
        assert counted == 2
        assert server.metric("phloem_tokens_total", part="prompt") == 2 * prompt
