"""Bad requests: the right status, one shape, the field at fault, and no harm to others."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest

from phloem.errors import InvalidQuery
from phloem.retrieval.base import Query
from phloem.retrieval.documents import check_query
from phloem.retrieval.filters import parse_filter
from phloem.server.error_map import error_object, status_of
from tests.server.harness import Running, chunks, serving, tiny


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/completions", "prompt"), ("/generate", "input_ids")]
)
def test_unknown_tokens_are_named_as_their_request_does(
    server: Running, path: str, field: str
) -> None:
    """Ids that the model lacks are a 400 for the field that holds them."""
    model = {} if path == "/generate" else {"model": server.model}
    error = server.client.post(path, json={field: [10**8], **model}).json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported")


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": "{}"}]}),
        ("/v1/completions", "prompt", {"prompt": "{}"}),
        ("/v1/completions", "prompt", {"prompt": "{}", "max_tokens": 40}),
        ("/generate", "text", {"text": "{}"}),
    ],
)
def test_a_prompt_that_is_too_long_is_named_as_its_request_does(
    server: Running, path: str, field: str, body: dict[str, Any]
) -> None:
    """The error says which field is too long; it does not advise a length that is too long too."""
    long = "a b " * 5_000
    sent = json.loads(json.dumps(body).replace("{}", long))
    if path != "/generate":
        sent["model"] = server.model
    reply = server.client.post(path, json=sent)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, field, "prompt_too_long")
    assert f"at most {error['details']['limit']} tokens" in error["hint"]
    assert "with max_tokens" in error["hint"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100000}, "n"),
        ({"stop": list("abcdefghijklm")}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"regex": "a[b"}, "regex"),
        ({"model": "no-such-model"}, "model"),
    ],
)
def test_the_field_at_fault_is_named(server: Running, body: dict[str, Any], param: str) -> None:
    """A bad field is a 400 (an unknown model a 404) with OpenAI's error object."""
    reply = server.chat(**body)
    assert reply.status_code == (404 if param == "model" else 400)
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["param"].partition(".")[0] == param.partition(".")[0]
    assert error["type"] == ("not_found_error" if param == "model" else "invalid_request_error")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json", "not JSON"),
        (b"", ""),
        (b'{"model": "m", "model": "n"}', "twice"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"model": ' + b"[" * 200 + b"]" * 200 + b"}", "nested"),
        (b"[" * 200_000, "nested"),
        (b'{"model": NaN}', "NaN"),
        (b'{"model": ' + b"1" * 10_000 + b"}", "digits"),
        (b'{"model": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\uDfFf": 1}', "half of a surrogate pair"),
    ],
)
def test_bodies_that_are_not_strict_json_are_refused(
    server: Running, content: bytes, says: str
) -> None:
    """Broken, doubled, undecodable and bottomless JSON is a 400 that says what is wrong."""
    headers = {"content-type": "application/json"}
    reply = server.client.post("/v1/chat/completions", content=content, headers=headers)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_refused(server: Running, content_type: str) -> None:
    """A body that does not say it is JSON is a 400."""
    reply = server.client.post(
        "/v1/chat/completions", content=b"{}", headers={"content-type": content_type}
    )
    assert reply.status_code == 400
    assert "content-type: application/json" in reply.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.user.content", "string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.user.content",
            "parts of type 'image_url' are not supported; send text parts",
        ),
        ({"tool_choice": "always"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "required"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "leave it out"),
        ({"stop": list("abcde"), "seed": "x"}, "stop", "4 stop texts are allowed (and 1 more)"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}] * 2},
            "tools",
            "two tools have the name f",
        ),
    ],
)
def test_a_refusal_says_what_was_wanted(
    server: Running, body: dict[str, Any], param: str, says: str
) -> None:
    """Of a value that may be of several kinds, the problem of the nearest kind is told, by the
    field's own name."""
    error = server.chat(**body).json()["error"]
    assert error["param"] == param
    assert says in error["message"]
    assert "Value error" not in error["message"]


def test_unknown_paths_and_methods_have_the_same_shape(server: Running) -> None:
    """404 and 405 carry the same error object."""
    for reply in (server.client.get("/nowhere"), server.client.get("/v1/chat/completions")):
        assert reply.status_code in {404, 405}
        assert reply.json()["error"]["message"]
        assert "/openapi.json" in reply.json()["error"]["hint"]


def test_a_bad_pattern_harms_nobody(server: Running) -> None:
    """Bad patterns are refused while a stream runs, which is as it is alone."""
    alone = server.chat(max_tokens=60).json()["choices"][0]["message"]["content"]
    body = server.chat_body(max_tokens=60, stream=True)
    with server.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        for pattern in ("a[b", "(ab", "*a", "a{3,1}"):
            reply = server.chat(regex=pattern)
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == "regex"
        assert server.client.get("/health").status_code == 200
        assert server.chat(regex="[ab]{3}").status_code == 200
        text = "".join(stream.iter_text())
    pieces = [part["choices"][0]["delta"].get("content", "") for part in chunks(text)]
    assert "".join(pieces) == alone


def _prompt(server: Running, tokens: int) -> list[dict[str, str]]:
    """A conversation of exactly `tokens` tokens."""
    empty = server.chat(messages=[{"role": "user", "content": "!"}], max_tokens=1).json()
    spare = tokens - empty["usage"]["prompt_tokens"] + 1
    # In the tiny vocabulary each exclamation mark is a token.
    return [{"role": "user", "content": "!" * spare}]


@pytest.fixture(scope="module")
def small() -> Any:
    """A server whose context holds 512 tokens."""
    with serving(tiny(512)) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_cannot_fit_is_refused_first(small: Running, stream: bool) -> None:
    """A prompt over the context is a 400 with both numbers before any byte of a stream."""
    reply = small.chat(messages=_prompt(small, 2000), stream=stream, max_tokens=8)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "2000" in error["message"]
    assert "512" in error["message"]
    assert error["details"]["prompt_tokens"] == 2000


@pytest.mark.parametrize(
    ("tokens", "limit", "status"), [(512, 1, 400), (511, 1, 200), (400, 200, 400), (400, 112, 200)]
)
def test_prompt_and_output_must_fit_together(
    small: Running, tokens: int, limit: int, status: int
) -> None:
    """prompt + max_tokens up to the context works, one more is a 400 naming max_tokens."""
    reply = small.chat(messages=_prompt(small, tokens), max_tokens=limit)
    assert reply.status_code == status
    if (tokens, limit) == (400, 200):
        assert reply.json()["error"]["param"] == "max_tokens"
        assert reply.json()["error"]["details"] == {
            "prompt_tokens": 400, "max_tokens": 200, "limit": 512
        }  # fmt: skip


def test_megabytes_of_prompt_hold_nobody_up(small: Running) -> None:
    """A prompt of 2 MB is refused with its count, and short requests go on beside it."""
    body = [{"role": "user", "content": "word " * 400_000}]
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(small.chat, messages=body)
        while not long.done():
            assert small.chat(max_tokens=1).status_code == 200
    reply = long.result()
    assert reply.status_code == 400
    assert reply.json()["error"]["details"]["prompt_tokens"] > 400_000


def test_without_a_limit_the_output_may_fill_the_context(small: Running) -> None:
    """Without max_tokens the reply runs to its end or to the last free token."""
    reply = small.chat(messages=_prompt(small, 400), max_tokens=..., ignore_eos=True).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 512


def test_a_deadline_that_passes_is_a_504(
    start: Callable[..., AbstractContextManager[Running]],
) -> None:
    """deadline_s ends a request with 504 and counts it as a timeout."""
    with start() as server:
        reply = server.chat(max_tokens=3000, ignore_eos=True, deadline_s=0.3)
        assert reply.status_code == 504
        assert reply.json()["error"]["type"] == "timeout_error"
        assert server.metric("phloem_requests_finished_total", kind="chat", reason="timeout") == 1


@pytest.mark.parametrize("given", ["", "[]", "deep"])
def test_a_senseless_search_is_the_askers_mistake(given: str) -> None:
    """An empty query, or a filter that is none, is a 400: not a failure of the search server."""
    asked = {"": Query(""), "[]": Query("x", filter=[]), "deep": Query("x", index="a/b")}[given]  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(InvalidQuery) as caught:
        parse_filter(check_query(asked).filter)
    assert status_of(caught.value) == 400
    assert error_object(caught.value)["error"]["type"] == "invalid_request_error"
