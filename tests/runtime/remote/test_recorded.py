"""Replies of a real SGLang server, recorded byte for byte, read as events and results.

The recordings are SGLang 0.5.23's on a CPU with SmolLM2-135M-Instruct in bf16, once with cumulative
and once with incremental streams; `recorded/record.py` made them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phloem.errors import Cancelled, EngineError
from phloem.programs.protocol import SamplingParams, StepResult, Text, TokenEvent
from phloem.runtime.engine.tokens import Choice
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.model.text import load_model_text
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint
from phloem.runtime.sglang.reply import Output
from phloem.runtime.sglang.scoring import Scoring

from .canned import canned, reply

pytestmark = pytest.mark.model
FOLDER = Path(__file__).parent / "recorded"
MODES = ("cumulative", "incremental")
MODEL = tiny_model()


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """The real model's, whose ids the recordings hold."""
    text = load_model_text()
    return Vocabulary(text.tokenizer, text.tokenizer.vocab_size, text.eos_ids)


def recorded(mode: str, name: str) -> dict[str, Any]:
    """A request and what was answered."""
    found: dict[str, Any] = json.loads((FOLDER / f"sglang_{mode}.json").read_text())[name]
    return found


def read(
    mode: str, name: str, vocabulary: Vocabulary, params: SamplingParams
) -> tuple[list[TokenEvent], StepResult]:
    """The events of a recorded stream and its result, the last event included."""
    output = Output(params, vocabulary)
    output.begin(incremental=mode == "incremental")
    events = []
    for block in recorded(mode, name)["body"].split("\n\n"):
        if block.startswith("data: {") and not output.ended:
            event = output.read(json.loads(block.removeprefix("data: ")))
            events += [event] if event is not None else []
    last, result = output.finish(5, None)
    return [*events, last], result


@pytest.mark.parametrize("mode", MODES)
def test_streams_join_to_their_result(mode: str, vocabulary: Vocabulary) -> None:
    """Text, tokens and log-probabilities are the same whether streams repeat themselves or not."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
    events, result = read(mode, "length", vocabulary, params)
    assert "".join(event.text for event in events) == result.text == " Paris.\n\nThe answer"
    assert sum((event.tokens for event in events), ()) == result.tokens
    assert (result.finish_reason, result.usage.generated) == ("length", 6)
    assert [one.token for one in result.logprobs] == list(result.tokens)
    assert all(len(one.top) == 2 and one.logprob <= 0 for one in result.logprobs)


@pytest.mark.parametrize("mode", MODES)
def test_stops_and_ends_are_cut_off(mode: str, vocabulary: Vocabulary) -> None:
    """Neither a stop text nor the end-of-sequence token, which SGLang sends, is in the result."""
    stopped = read(mode, "stop_text", vocabulary, SamplingParams(max_tokens=12, stop=("\n",)))[1]
    assert (stopped.text, stopped.stop, stopped.finish_reason) == (" Paris.", "\n", "stop")
    ended = read(mode, "eos", vocabulary, SamplingParams(max_tokens=12))[1]
    assert (ended.text, ended.stop, ended.finish_reason) == (" Paris.", None, "stop")
    assert not set(ended.tokens) & vocabulary.eos_ids


@pytest.mark.parametrize("mode", MODES)
def test_an_aborted_stream_raises(mode: str, vocabulary: Vocabulary) -> None:
    """A 200 stream that ends with the reason "abort" is no result."""
    with pytest.raises(Cancelled, match="Aborted"):
        read(mode, "aborted", vocabulary, SamplingParams(max_tokens=400, ignore_eos=True))


def test_scores_are_read_by_choice() -> None:
    """Choices of one token share a prompt, one of two tokens has its own; each gets its numbers."""
    choices = [Choice(" Paris", [7042]), Choice(" London.", [4092, 30]), Choice(" London", [4528])]
    answer = recorded("cumulative", "score")
    scoring = Scoring(answer["request"]["input_ids"][0], choices, bare=False)
    assert scoring.fields() == answer["request"]
    scored, cached = scoring.read(json.loads(answer["body"]))
    paris, dotted, london = (one.logprobs for one in scored)
    assert [len(one.logprobs) for one in scored] == [1, 2, 1]
    assert paris[0] > london[0] > sum(dotted)
    assert [one.greedy_prefix for one in scored] == [1, 0, 0]
    assert cached == 4


async def test_a_refused_grammar_says_why() -> None:
    """The server's 400 is raised with its message."""
    body = recorded("cumulative", "bad_regex")["body"]
    async with canned({"/generate": reply(400, body)}) as server:
        backend = RuntimeEndpoint(server.url, tokenizer=MODEL)
        session = await backend.open("s")
        session.append([Text("x")])
        with pytest.raises(EngineError, match="Failed to compile regex grammar"):
            async for _ in session.generate(SamplingParams(max_tokens=2)):
                pass
        await backend.aclose()
