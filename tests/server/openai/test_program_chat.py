"""A program behind the chat endpoint: what it says last comes as it is said."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

import phloem as ph
from phloem.programs.testing import ScriptedBackend
from phloem.server.openai.final_steps import final_steps
from tests.server.harness import chunks, serving, tiny


@ph.function
def direct(s: ph.State, question: str) -> str:
    """Thinks, then answers."""
    s += ph.user(question)
    s += ph.assistant(ph.gen("thought", max_tokens=10))
    s += ph.user("Now answer.")
    s += ph.assistant("It is " + ph.gen("answer", max_tokens=10) + ".")
    return s["answer"]


@ph.function
def either(s: ph.State, question: str) -> str:
    """Answers on one of two ways."""
    s += question
    if len(question) > 3:
        s += ph.gen("long")
        return s["long"]
    s += ph.gen("short")
    return s["short"]


@ph.function(prompts={"ask": "{{ question }}"})
def by_value(question: str) -> str:
    """In value style."""
    answer = ph.gen("ask", max_tokens=10)
    return answer  # noqa: RET504 - the point of the test


@ph.function
def changed(s: ph.State, question: str) -> str:
    """Returns what it said in another form."""
    s += question + ph.gen("answer", max_tokens=10)
    return s["answer"].upper()


@ph.function
def parsed(s: ph.State, question: str) -> Any:
    """Returns a parsed value."""
    s += question + ph.gen("answer", type=int)
    return s["answer"]


@ph.function
def looped(s: ph.State, question: str) -> str:
    """Says the last word several times."""
    s += question
    for _ in range(3):
        s += ph.gen("answer", max_tokens=10)
    return s["answer"]


@ph.function
def replaced(s: ph.State, question: str) -> str:
    """Changes the variable after the step."""
    s += question + ph.gen("answer", max_tokens=10)
    s.set_var("answer", "something else")
    return s["answer"]


@ph.function
def sampled(s: ph.State, question: str) -> Any:
    """Returns a list of samples."""
    s += question + ph.gen("answer", n=2)
    return s["answer"]


@ph.function
def reasoned(s: ph.State, question: str) -> str:
    """Returns what follows the reasoning."""
    s += question
    s += ph.separate_reasoning(ph.gen("answer"), "qwen3")
    return s["answer"]


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (direct, {"answer"}), (either, {"long", "short"}), (by_value, {"ask"}),
        (changed, set()), (parsed, set()), (looped, set()), (replaced, set()), (sampled, set()),
        (reasoned, set()),
    ],
)  # fmt: skip
def test_the_steps_that_say_the_value(program: ph.Program, steps: set[str]) -> None:
    """A step is final if its text is the program's value on every way that leads on from it."""
    nodes = program.graph.nodes
    assert {nodes[found].name for found in final_steps(program)} == steps


@ph.function
def closing(s: ph.State, question: str) -> str:
    """Returns the text of its one step, whose length the client may choose."""
    s += question + ph.gen("answer")
    return s["answer"]


def deltas(lines: Any) -> Any:
    for line in lines:
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            yield chunk["choices"][0]


def test_the_last_step_is_streamed_as_it_comes() -> None:
    """The first piece of the answer reaches the client while the engine still waits to make the
    rest; the pieces together are the value, and nothing of earlier steps is among them."""
    go_on = threading.Event()
    made = 0

    async def gate() -> None:
        nonlocal made
        made += 1
        while made > len("thinking") + 2 and not go_on.is_set():  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)

    backend = ScriptedBackend(["thinking", "yes, it is"], gate=gate)
    with serving(backend, [direct]) as server:
        body = {
            "model": "program:direct",
            "messages": [{"role": "user", "content": "Is it?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with server.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = reply.iter_lines()
            found = deltas(lines)
            assert next(found)["delta"] == {"role": "assistant", "content": ""}
            early = next(found)["delta"]["content"]
            assert "yes, it is".startswith(early)
            assert made <= len("thinking") + 3
            go_on.set()
            rest = list(lines)
        told = [json.loads(line[6:]) for line in rest if line.startswith("data: {")]
        pieces = [c["choices"][0]["delta"].get("content", "") for c in told if c["choices"]]
        assert early + "".join(pieces) == "yes, it is"
        assert len(pieces) > 3
        assert told[-1]["usage"]["completion_tokens"] == len("thinking") + len("yes, it is")
        assert rest[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in rest


@pytest.mark.parametrize(("most", "reason"), [(4, "length"), (64, "stop")])
def test_a_reply_that_was_cut_says_so(most: int, reason: str) -> None:
    """max_tokens of the program's last step ends the reply with "length", streamed or not."""
    with serving(ScriptedBackend(["the answer"] * 2), [closing]) as server:
        body = {
            "model": "program:closing",
            "messages": [{"role": "user", "content": "Is it?"}],
            "max_tokens": most,
        }
        whole = server.client.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert whole["finish_reason"] == reason
        stream = server.client.post("/v1/chat/completions", json=body | {"stream": True})
        *_, last = chunks(stream.text)
        assert last["choices"][0]["finish_reason"] == reason


def test_other_values_come_whole() -> None:
    """A value that is not the last step's text comes in one piece at the end."""
    with serving(ScriptedBackend(["abc"]), [changed]) as server:
        reply = server.chat(
            model="program:changed",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            temperature=...,
        )
    found = [choice["delta"] for choice in deltas(reply.text.splitlines())]
    assert [delta.get("content") for delta in found] == ["", "ABC", None]


@ph.function
def drawn(s: ph.State, question: str) -> str:
    """Says something at random."""
    s += ph.user(question)
    s += ph.assistant(ph.gen("said", max_tokens=16, temperature=1))
    return s["said"]


def test_seeds_repeat_and_samples_differ() -> None:
    """Candidates of one seeded request differ from each other and repeat across calls; without a
    seed, runs one by one and runs in a batch are about equally diverse."""
    backend = tiny()
    with serving(backend, [drawn]) as server:
        asked = {"temperature": 1, "seed": 1234, "max_tokens": 16, "n": 4}

        def texts() -> list[str]:
            return [one["message"]["content"] for one in server.chat(**asked).json()["choices"]]

        first = texts()
        assert len(set(first)) == 4
        assert texts() == first
        alone = [drawn.run("x", backend=backend).value for _ in range(30)]
        batch = [
            state.value for state in drawn.run_batch([{"question": "x"}] * 30, backend=backend)
        ]
        assert min(len(set(alone)), len(set(batch))) >= 25
