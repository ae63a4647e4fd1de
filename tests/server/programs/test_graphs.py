"""Graphs sent as JSON, and programs behind the chat endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.harness import Running, chunks, serving, tiny
from tests.server.programs.samples import PROGRAMS

GRAPH: dict[str, Any] = {
    "start": "ask",
    "nodes": {
        "ask": {
            "type": "append", "role": "user", "next": "pick",
            "text": ["Is ", {"value": "thing"}, " red? ", {"value": "facts"}],
        },
        "pick": {
            "type": "select", "name": "colour", "choices": ["red", "blue"], "role": "assistant",
            "next": "test",
        },
        "test": {
            "type": "branch", "condition": "colour == want", "then": "yes", "otherwise": "no"
        },
        "yes": {"type": "gen", "name": "why", "regex": "[a-z]{5}", "next": "end"},
        "no": {"type": "append", "text": " No.", "next": "other"},
        "other": {"type": "return", "value": "[colour, `false`]"},
        "end": {"type": "return", "value": "{colour: colour, why: why}"},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(tiny(), PROGRAMS) as running:
        yield running


def send(server: Running, graph: dict[str, Any], **body: Any) -> Any:
    return server.client.post("/v1/graphs/runs", json={"graph": graph, **body})


def test_a_graph_runs_with_its_branches(server: Running) -> None:
    """Appends, selects, gens and branches run; the condition decides by the variables."""
    args = {"thing": "the sky", "facts": {"n": 1}}
    picked = send(server, GRAPH, args={**args, "want": "red"}).json()["variables"]["colour"]
    yes = send(server, GRAPH, args={**args, "want": picked}).json()
    assert yes["status"] == "succeeded"
    assert yes["value"]["colour"] == picked
    assert len(yes["value"]["why"]) == 5
    assert 'Is the sky red? {"n": 1}' in yes["text"]
    no = send(server, GRAPH, args={**args, "want": "green"}).json()
    assert no["value"] == [picked, False]
    assert no["text"].endswith(" No.")


def changed(path: str, value: Any) -> dict[str, Any]:
    graph: dict[str, Any] = json.loads(json.dumps(GRAPH))
    *steps, last = path.split("/")
    place = graph
    for step in steps:
        place = place[step]
    place[last] = value
    return graph


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("start", "nowhere", "no node"),
        ("nodes/yes/next", "nowhere", "no node"),
        ("nodes/lost", {"type": "return", "value": "x"}, "nothing leads to lost"),
        ("nodes/test/condition", "colour ==", "JMESPath"),
        ("nodes/test/condition", "!" * 900 + "colour", "nested too deep"),
        ("nodes/Ask", {"type": "gen", "max_tokens": "x"}, "nodes.Ask."),
        ("nodes/pick/choices", [], "choices"),
        ("nodes/yes/regex", "a[b", "regex"),
        ("nodes/yes/code", "import os", "Extra"),
        ("nodes/yes/json_schema", {}, "regex and json_schema exclude each other"),
        ("nodes/yes/stop", [""], "stop.0"),
        ("nodes/ask/type", "python", "type"),
    ],
)
def test_a_bad_graph_is_refused(server: Running, path: str, value: Any, says: str) -> None:
    """Dangling edges, unreachable nodes, bad expressions and unknown kinds are a 400."""
    reply = send(server, changed(path, value), args={})
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]


def test_a_loop_without_end_is_ended(server: Running) -> None:
    """A graph that never comes to an end fails with a message that says so."""
    loop = {"start": "a", "nodes": {"a": {"type": "branch", "condition": "`true`", "then": "a"}}}
    reply = send(server, loop)
    assert reply.status_code == 422
    assert "1000 nodes" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"type": "return", "value": "words[::0]"}, "step"),
        ({"type": "return", "value": "abs(word)"}, "abs()"),
        ({"type": "retrieve", "name": "docs", "query": "wrod"}, "gives null, no text"),
        ({"type": "retrieve", "name": "docs", "query": "@"}, "no text"),
        ({"type": "append", "text": ["a ", {"value": "wrod"}]}, "'wrod' gives nothing to append"),
    ],
)
def test_a_value_that_can_not_be_is_an_error_of_its_node(
    server: Running, node: dict[str, Any], says: str
) -> None:
    """An expression that fails, and a search for what is no text, name the node and say how."""
    reply = send(
        server, {"start": "here", "nodes": {"here": node}}, args={"word": "x", "words": ["x"]}
    )
    error = reply.json()["error"]
    assert reply.status_code == 422
    assert error["code"] in ("program_error", "unknown_variable")
    assert "'here'" in error["message"]
    assert says in error["message"]
    assert error["hint"]


def test_graphs_are_not_a_listed_program(server: Running) -> None:
    """The interpreter of graphs is not among the programs, but its runs are among the runs."""
    send(server, GRAPH, args={"thing": "x", "facts": "", "want": "red"})
    names = {one["name"] for one in server.client.get("/v1/programs").json()["data"]}
    assert "graph" not in names
    assert server.client.get("/v1/runs?program=graph").json()["data"]


def test_a_program_answers_a_chat(server: Running) -> None:
    """The model program:NAME runs the program with the last user message."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert "program:story" in {model.id for model in client.models.list()}
        messages: Any = [{"role": "user", "content": "the sea"}]
        reply = client.chat.completions.create(model="program:story", messages=messages, seed=1)
        run = server.run("story", args={"topic": "the sea"}, seed=1).json()
        assert reply.choices[0].message.content == run["value"]
        assert reply.usage is not None
        assert reply.usage.completion_tokens == run["usage"]["generated"]
        pieces = client.chat.completions.create(
            model="program:story", messages=messages, seed=1, stream=True
        )
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == run["value"]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="program:story", messages=messages, n=2)
        assert refused.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="program:nope", messages=messages)
        with pytest.raises(openai.UnprocessableEntityError) as failed:
            client.chat.completions.create(model="program:broken", messages=messages)
        assert failed.value.code == "key_error"


def test_a_failing_program_ends_its_stream_with_the_error(server: Running) -> None:
    """A streamed chat with a program that fails is an error reply, or an error event."""
    messages = [{"role": "user", "content": "x"}]
    reply = server.chat(model="program:broken", messages=messages, stream=True, temperature=...)
    if reply.status_code == 200:
        assert "error" in chunks(reply.text)[-1]
    else:
        assert reply.status_code == 422
