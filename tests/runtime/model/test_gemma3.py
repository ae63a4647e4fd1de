"""Gemma 3 270M, a base model with a sentencepiece vocabulary, against transformers."""

import json
from pathlib import Path

import pytest
import torch

from phloem.errors import Unsupported
from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.load import load_model

GOLDEN = json.loads((Path(__file__).parent / "goldens" / "gemma3.json").read_text())
NEAR_TIE = 1e-4

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def gemma():
    """The model in float32 (phloem model pull gemma3-270m)."""
    return load_model("gemma3-270m", dtype="float32")


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=lambda golden: golden["text"][:9])
def test_logits_and_greedy_text_equal_the_stored_reference(gemma, pages, golden):
    """Logits differ by less than 1e-3 and 32 greedy tokens are those of transformers, also where
    the prompt is longer than a window."""
    runner = pages(gemma.decoder, page_size=16, pages=128)
    row = runner.logits(golden["ids"])[-1]
    expected = torch.tensor(list(golden["logits"].values()))
    assert (row[[int(i) for i in golden["logits"]]] - expected).abs().max() < 1e-3
    got = runner.greedy(golden["ids"], len(golden["greedy"]))
    differing = [i for i, (a, b) in enumerate(zip(got, golden["greedy"], strict=True)) if a != b]
    assert not differing or golden["margins"][differing[0]] < NEAR_TIE


@pytest.mark.parametrize(("text", "ids"), GOLDEN["texts"])
def test_text_has_the_reference_tokens_and_survives_the_way_back(gemma, text, ids):
    """Unicode, blanks and bytes outside the vocabulary are tokenised as by transformers (but for
    spellings of tags, which stay ordinary text here), and decode to themselves."""
    if "<" not in text:
        assert gemma.tokenizer.encode(text) == ids
    assert gemma.tokenizer.decode(gemma.tokenizer.encode(text)) == text


async def test_a_base_model_answers_plain_text_and_has_no_roles(gemma):
    """A session opens with the model's begin-of-sequence token, a constraint holds, and asking
    for the chat format says that the model has none."""
    backend = EmbeddedBackend(gemma, kv_tokens=512)
    session = await backend.open("s")
    session.append([Text("The capital of France is")])
    params = SamplingParams(max_tokens=8, temperature=0)
    result = [item async for item in session.generate(params)][-1]
    assert isinstance(result, StepResult)
    assert (await session.snapshot()).tokens[0] == gemma.bos == 2
    assert result.tokens == tuple(GOLDEN["prompts"][0]["greedy"][:8])
    with pytest.raises(Unsupported, match="no chat template"):
        _ = backend.chat
    await backend.aclose()
