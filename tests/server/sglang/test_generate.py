"""SGLang's native endpoints, called the way its frontend calls them."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from typing import Any

import httpx
import pytest

from phloem.programs.testing import ScriptedBackend
from phloem.runtime.model.tiny import tiny_model
from tests.server.harness import Running, serving


def generate(server: Running, text: Any, stream: bool = False, **body: Any) -> httpx.Response:
    sampling = {"max_new_tokens": 8, "temperature": 0, **body.pop("sampling_params", {})}
    asked = {"text": text, "sampling_params": sampling, "stream": stream, **body}
    return server.client.post("/generate", json=asked)


def test_model_info_names_the_model(server: Running) -> None:
    """GET /get_model_info has the path that the frontend picks a chat template by."""
    info = server.client.get("/get_model_info").json()
    assert info["model_path"] == server.model
    assert info["is_generation"] is True


def test_one_text_gives_one_output_and_several_a_list(server: Running) -> None:
    """A text gives an object, a list or n > 1 a list, all with their counts."""
    one = generate(server, "Hello").json()
    assert one["meta_info"]["completion_tokens"] == len(one["output_ids"]) == 8
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
    several = generate(server, ["Hello", "World"]).json()
    assert several[0]["text"] == one["text"]
    assert len(several) == 2
    sampled = {"n": 3, "temperature": 1, "sampling_seed": 5}
    assert len({out["text"] for out in generate(server, "Hi", sampling_params=sampled).json()}) == 3


def test_stream_repeats_the_text_so_far(server: Running) -> None:
    """Each event holds all text so far; the last has the finish reason; then [DONE]."""
    whole = generate(server, "Hello").json()
    reply = generate(server, "Hello", stream=True)
    lines = [line[6:] for line in reply.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    for before, after in itertools.pairwise(events):
        assert after["text"].startswith(before["text"])
    assert events[-1]["text"] == whole["text"]
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])


def test_an_interval_spaces_the_events(server: Running) -> None:
    """After the first event each brings at least `stream_interval` tokens, and the last the rest;
    one that holds the whole output leaves two."""
    row = tiny_model().tokenizer.encode("Hello")
    whole = ids(server, row).json()["output_ids"]
    for interval in (3, 8):
        reply = ids(server, row, stream=True, sampling_params={"stream_interval": interval})
        lines = [line[6:] for line in reply.text.split("\n\n") if line.startswith("data: ")]
        told = [json.loads(line)["output_ids"] for line in lines[:-1]]
        assert told[-1] == whole
        assert all(len(b) - len(a) >= interval for a, b in itertools.pairwise(told[:-1]))
        assert told[0]
    assert len(told) <= 2


def test_constraints_hold_and_bad_ones_are_refused(server: Running) -> None:
    """regex and json_schema (a string) are enforced; a bad one is a 400 naming the field."""
    assert (
        generate(server, "x", sampling_params={"regex": "[ab]{4}"}).json()["text"].strip("ab") == ""
    )
    schema = json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
                         "additionalProperties": False})  # fmt: skip
    text = generate(server, "x", sampling_params={"json_schema": schema, "max_new_tokens": 30})
    assert json.loads(text.json()["text"]) == {"a": 1}
    for field, value in (("regex", "a[b"), ("json_schema", "{"), ("nope", 1)):
        reply = generate(server, "x", sampling_params={field: value})
        assert reply.status_code == 400
        assert field in reply.json()["error"]["param"]


def test_logprobs_are_triples(server: Running) -> None:
    """return_logprob gives [logprob, id, text] for each output token."""
    reply = generate(server, "Hello", return_logprob=True, top_logprobs_num=2,
                     return_text_in_logprobs=True).json()  # fmt: skip
    meta = reply["meta_info"]
    assert [triple[1] for triple in meta["output_token_logprobs"]] == reply["output_ids"]
    assert all(triple[0] <= 0 for triple in meta["output_token_logprobs"])
    assert {len(top) for top in meta["output_top_logprobs"]} == {2}


def test_choices_are_scored_as_the_frontend_does_it(server: Running) -> None:
    """A prefill, then one batched call without output, gives the prompts' log-probabilities
    from the position asked for."""
    prefix = "Is it red? Answer:"
    sampling = {"max_new_tokens": 0, "temperature": 0}
    known = generate(server, prefix, sampling_params=sampling).json()["meta_info"]["prompt_tokens"]
    choices = [f"{prefix} yes", f"{prefix} no"]
    scored = generate(
        server, choices, sampling_params=sampling, return_logprob=True,
        logprob_start_len=max(known - 2, 0),
    ).json()  # fmt: skip
    assert len(scored) == 2
    for one in scored:
        triples = one["meta_info"]["input_token_logprobs"]
        assert len(triples) == one["meta_info"]["prompt_tokens"] - max(known - 2, 0)
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob, _, _ in triples)
    again = generate(server, choices, sampling_params=sampling, return_logprob=True).json()
    assert again[0]["meta_info"]["input_token_logprobs"][0][0] is None


def test_the_cache_is_flushed_when_idle(server: Running) -> None:
    """After /flush_cache nothing is cached."""
    server.wait_idle()
    generate(server, "A text that stays")
    assert generate(server, "A text that stays").json()["meta_info"]["cached_tokens"] > 0
    assert server.client.post("/flush_cache").status_code == 200
    assert generate(server, "A text that stays").json()["meta_info"]["cached_tokens"] == 0


def test_the_cache_is_not_flushed_under_running_requests() -> None:
    """While a request runs /flush_cache is a 400."""

    async def stand_still() -> None:
        await asyncio.Event().wait()

    with serving(ScriptedBackend(["never said"], gate=stand_still), early_headers_s=0.01) as server:
        body = server.chat_body(stream=True)
        with server.client.stream("POST", "/v1/chat/completions", json=body):
            assert server.client.post("/flush_cache").status_code == 400
        server.wait_idle()
        assert server.client.post("/flush_cache").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health_is_told(server: Running, path: str) -> None:
    """Both probes answer 200 on a server that works."""
    assert server.client.get(path).status_code == 200


def ids(server: Running, rows: Any, **body: Any) -> httpx.Response:
    sampling = {"max_new_tokens": 8, "temperature": 0, **body.pop("sampling_params", {})}
    asked = {"input_ids": rows, "sampling_params": sampling, **body}
    return server.client.post("/generate", json=asked)


def test_ids_are_prompts_too(server: Running) -> None:
    """input_ids give what the same tokens as text give; ids the model lacks are refused."""
    text = generate(server, "Hello").json()
    tokens = tiny_model().tokenizer.encode("Hello")
    assert ids(server, tokens).json()["output_ids"] == text["output_ids"]
    assert [one["output_ids"] for one in ids(server, [tokens, tokens]).json()] == [
        text["output_ids"]
    ] * 2
    for body in ({"text": "a", "input_ids": [1]}, {}, {"input_ids": [10**6]}, {"input_ids": []}):
        reply = server.client.post("/generate", json=body)
        assert (reply.status_code, "error" in reply.json()) == (400, True)


def test_rows_of_ids_are_scored_from_their_starts(server: Running) -> None:
    """The token at the start has no value; the rest agree with whole-row scores; the best token
    of each place is there where asked."""
    row = tiny_model().tokenizer.encode("A longer row of ids to score")
    none = {"max_new_tokens": 0}
    one, other = ids(
        server, [row, row], sampling_params=none, return_logprob=True,
        logprob_start_len=[0, len(row) - 3], top_logprobs_num=1,
    ).json()  # fmt: skip
    whole, tail = (each["meta_info"]["input_token_logprobs"] for each in (one, other))
    assert [triple[1] for triple in whole] == row
    assert whole[0][0] is None
    assert [t[0] for t in tail[1:]] == pytest.approx([t[0] for t in whole[-2:]], abs=1e-5)
    tops = one["meta_info"]["input_top_logprobs"]
    assert tops[0] is None
    assert all(top[0][0] >= triple[0] for top, triple in zip(tops[1:], whole[1:], strict=True))
    assert ids(server, row, sampling_params=none, return_logprob=True,
               logprob_start_len=len(row)).status_code == 400  # fmt: skip


def test_keys_keep_caches_apart(server: Running) -> None:
    """The same ids are reused under the same extra_key and cache_salt only."""
    row = tiny_model().tokenizer.encode("What is cached under a key is not found under another")
    cached = [
        ids(server, row, **keys).json()["meta_info"]["cached_tokens"] > 0
        for keys in (
            {"extra_key": "a"}, {"extra_key": "a"}, {"extra_key": "b"}, {"cache_salt": "a"}, {},
        )
    ]  # fmt: skip
    assert cached == [False, True, False, False, False]
    assert ids(server, [row, row], extra_key=["a", "b"]).status_code == 400


def test_a_request_ends_when_its_rid_is_aborted(server: Running) -> None:
    """/abort_request ends a stream with the reason "abort", and its slot is free; a stranger's
    rid is no error."""
    row = tiny_model().tokenizer.encode("On and on")
    sampling = {"max_new_tokens": 3000, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": row, "sampling_params": sampling, "stream": True, "rid": "mine"}
    with server.client.stream("POST", "/generate", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        assert server.client.post("/abort_request", json={"rid": "other"}).status_code == 200
        assert server.client.post("/abort_request", json={"rid": "mine"}).status_code == 200
        events = [line for line in lines if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2][6:])
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert json.loads(events[0][6:])["meta_info"]["id"] == "mine"
    server.wait_idle()


def test_server_info_says_what_is_served(server: Running) -> None:
    """GET /get_server_info has the names that phloem's own SGLang backend reads."""
    info = server.client.get("/get_server_info").json()
    assert info["product"] == "phloem"
    assert info["max_req_input_len"] == 4096
    assert info == server.client.get("/server_info").json()


def test_a_lark_grammar_is_taken_as_ebnf(server: Running) -> None:
    """`ebnf` is a Lark grammar; two constraints at once are refused."""
    grammar = 'start: "ab" "c"+ "d"'
    text = generate(server, "x", sampling_params={"ebnf": grammar, "max_new_tokens": 60})
    assert set(text.json()["text"]) <= set("abcd")
    both = generate(server, "x", sampling_params={"ebnf": grammar, "regex": "a"})
    assert both.status_code == 400


def test_fields_that_ask_for_nothing_are_taken(server: Running) -> None:
    """What SGLang's clients send by default, and lists that say the same of every prompt, work."""
    nothing = {"image_data": None, "lora_path": None, "return_hidden_states": False}
    nothing |= {"sampling_params": None, "log_metrics": True}
    assert server.client.post("/generate", json={"text": "x", **nothing}).status_code == 200
    params = [{"max_new_tokens": 2, "temperature": 0}] * 2
    body = {"text": ["x", "y"], "sampling_params": params, "return_logprob": [True, True]}
    both = server.client.post("/generate", json=body)
    assert [len(one["meta_info"]["output_token_logprobs"]) for one in both.json()] == [2, 2]


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params", "a request for each"),
        ({"return_logprob": [True, False]}, "return_logprob", "a request for each"),
        (
            {"return_logprob": True, "logprob_start_len": 0},
            "logprob_start_len",
            "max_new_tokens: 0",
        ),
        (
            {"return_logprob": True, "token_ids_logprob": [5]},
            "token_ids_logprob",
            "max_new_tokens: 0",
        ),
        ({"image_data": "x"}, "image_data", "leave it out"),
    ],
)
def test_what_can_not_be_honoured_is_refused(
    server: Running, body: dict[str, Any], param: str, says: str
) -> None:
    """Nothing that asks for something is passed over in silence."""
    reply = server.client.post("/generate", json={"text": ["x", "y"], **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert says in reply.json()["error"]["message"]
