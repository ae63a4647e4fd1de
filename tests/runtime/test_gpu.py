"""The embedded engine on a CUDA device against the same engine on the CPU.

PHLOEM_GPU_TEST_DEVICE names another device than "cuda", to try the tests themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re

import pytest
import torch

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.linear import Dense
from phloem.runtime.model.llama import LayerWeights, LlamaDecoder
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tiny import tiny_model

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ("Once upon a time", "The answer is", "A list of things: one, two,")


@pytest.fixture(scope="module")
def device() -> str:
    """The device under test."""
    named = os.environ.get("PHLOEM_GPU_TEST_DEVICE", "cuda")
    if named.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return named


def moved(model: LoadedModel, device: str) -> LoadedModel:
    """The tiny model with its weights on `device`."""
    decoder = model.decoder
    assert isinstance(decoder, LlamaDecoder)

    def there(value):
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return Dense(value.weight.to(device)) if isinstance(value, Dense) else value

    layers = [
        LayerWeights(**{f.name: there(getattr(layer, f.name)) for f in dataclasses.fields(layer)})
        for layer in decoder._layers
    ]
    norm, head = there(decoder._final_norm), there(decoder._head)
    twin = LlamaDecoder(decoder.config, there(decoder._embedding), layers, norm, head)
    return dataclasses.replace(model, decoder=twin)


def batch(device: torch.device, tokens: list[int], start: int) -> ForwardBatch:
    """Rows of one sequence on the first pages."""
    places = torch.arange(start, start + len(tokens), device=device)
    pages = -(-(start + len(tokens)) // 16)
    return ForwardBatch(
        tokens=torch.tensor(tokens, device=device),
        positions=places,
        slots=places,
        query_starts=[0, len(tokens)],
        context_lens=[start + len(tokens)],
        pages=torch.arange(pages, device=device)[None],
        logit_rows=torch.arange(len(tokens), device=device),
    )


def prefilled(model: LoadedModel, tokens: list[int]) -> tuple[KVStorage, torch.Tensor]:
    """KV and logits of a prompt."""
    kv = model.decoder.new_kv(8, 16)
    return kv, model.decoder.forward(batch(model.decoder.device, tokens, 0), kv).cpu()


async def said(backend: EmbeddedBackend, prompt: str, params=GREEDY, constraint=None) -> StepResult:
    session = await backend.open("s")
    session.append([Text(prompt, heal=False)])
    *_, result = [item async for item in session.generate(params, constraint)]
    assert isinstance(result, StepResult)
    return result


def test_logits_are_the_cpus(device: str) -> None:
    """Prefill and one decode step give the CPU's logits in float32."""
    model = tiny_model()
    twin = moved(model, device)
    tokens = model.tokenizer.encode("A prompt of some length for both devices.")
    (here, expected), (there, found) = (prefilled(one, tokens) for one in (model, twin))
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
    step = [batch(one.decoder.device, [7], len(tokens)) for one in (model, twin)]
    expected = model.decoder.forward(step[0], here)
    found = twin.decoder.forward(step[1], there).cpu()
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


def test_the_pool_lives_on_the_device(device: str) -> None:
    """Keys and values are where the weights are, and zero at first."""
    kv = moved(tiny_model(), device).decoder.new_kv(4, 16)
    assert {tensor.device.type for tensor in (*kv.keys, *kv.values)} == {torch.device(device).type}
    assert float(kv.keys[0].abs().sum()) == 0


async def test_greedy_text_is_the_cpus(device: str) -> None:
    """One after the other and all at once, the engine says what it says on the CPU."""
    here, there = EmbeddedBackend(tiny_model()), EmbeddedBackend(moved(tiny_model(), device))
    alone = [(await said(here, prompt)).tokens for prompt in PROMPTS]
    assert [(await said(there, prompt)).tokens for prompt in PROMPTS] == alone
    await there.flush_cache()
    together = await asyncio.gather(*(said(there, prompt) for prompt in PROMPTS))
    assert [result.tokens for result in together] == alone
    await here.aclose()
    await there.aclose()


async def test_constrained_decoding_keeps_its_language(device: str) -> None:
    """Masks, forced tokens and sampling work on device logits."""
    backend = EmbeddedBackend(moved(tiny_model(), device))
    pattern = "(cat|dog) [0-9]{3}"
    params = SamplingParams(temperature=1, seed=3, max_tokens=40)
    for constraint in (Constraint("regex", pattern), Constraint("choices", '["cat 123"]')):
        result = await said(backend, "I have a ", params, constraint)
        assert re.fullmatch(pattern, result.text)
    await backend.aclose()


async def test_prefixes_are_shared_on_the_device(device: str) -> None:
    """Forks reuse the pages of their parent, copies of partial pages included."""
    backend = EmbeddedBackend(moved(tiny_model(), device))
    session = await backend.open("s")
    session.append([Text("A shared beginning that is longer than a page. " * 3, heal=False)])
    [_ async for _ in session.generate(GREEDY)]
    forks = await session.fork(3)
    for number, fork in enumerate(forks):
        fork.append([Text(f" Branch {number}.")])
        *_, result = [item async for item in fork.generate(GREEDY)]
        assert result.usage.reused > 100
    await backend.aclose()


def test_a_decode_step_can_be_a_graph(device: str) -> None:
    """A decode step never waits for the device: as a CUDA graph it gives the same logits."""
    if not device.startswith("cuda"):
        pytest.skip("graphs are CUDA's")
    twin = moved(tiny_model(), device)
    tokens = twin.tokenizer.encode("A prompt before the step.")
    kv, _ = prefilled(twin, tokens)
    step = batch(twin.decoder.device, [7], len(tokens))
    expected = twin.decoder.forward(step, kv).clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        twin.decoder.forward(step, kv)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = twin.decoder.forward(step, kv)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected)
