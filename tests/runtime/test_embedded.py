"""The embedded backend: when it loads, who may use it, and how it ends."""

import asyncio
import dataclasses
import subprocess
import sys
import threading

import pytest

from phloem.errors import ConfigError, ModelNotFound, Unsupported
from phloem.programs.protocol import Backend, SamplingParams, Session, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model


async def text(backend, prompt, **params):
    session = await backend.open("s")
    session.append([Text(prompt)])
    asked = SamplingParams(**{"temperature": 0, "max_tokens": 6, **params})
    result = [item async for item in session.generate(asked)][-1]
    assert isinstance(result, StepResult)
    return result.text


async def test_it_is_a_backend():
    """The backend and its sessions have every method of the contract."""
    backend = EmbeddedBackend(tiny_model(), kv_tokens=256)
    assert isinstance(backend, Backend)
    assert isinstance(await backend.open("s"), Session)
    await backend.aclose()


async def test_nothing_is_loaded_before_it_is_needed():
    """Making a backend with an unknown model is free; opening a session says what is missing."""
    backend = EmbeddedBackend("no-such-model")
    with pytest.raises(ModelNotFound, match="no-such-model"):
        await backend.open("s")
    with pytest.raises(ModelNotFound):
        _ = backend.capabilities
    await backend.flush_cache()
    await backend.aclose()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"kv_tokens": 8}, "kv_tokens"),
        ({"page_size": 0}, "page_size"),
        ({"max_running": 0}, "max_running"),
        ({"queue_limit": 0}, "queue_limit"),
        ({"overtakes": -1}, "overtakes"),
        ({"inter_token_ms": 0}, "inter_token_ms"),
        ({"max_rows": 16}, "max_rows"),
        ({"eviction": "random"}, "eviction"),
        ({"pinned_share": 1.5}, "pinned_share"),
    ],
)
def test_bad_settings_are_named(settings, name):
    """A setting that can't work raises ConfigError when the backend is made."""
    with pytest.raises(ConfigError, match=name):
        EmbeddedBackend(**settings)


def test_several_loops_may_share_a_backend():
    """Four threads, each with an event loop of its own, get the texts one gets alone."""
    backend = EmbeddedBackend(tiny_model(), kv_tokens=2048)
    prompts = [f"the user {i}" for i in range(4)]
    alone = [asyncio.run(text(backend, prompt)) for prompt in prompts]
    found: dict[str, str] = {}

    def work(prompt):
        found[prompt] = asyncio.run(text(backend, prompt))

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt] for prompt in prompts] == alone
    asyncio.run(backend.aclose())


def test_no_thread_keeps_the_process_alive():
    """A process that forgot to close its backend, in the middle of a step, still ends at once."""
    code = """
import asyncio
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
async def main():
    session = await EmbeddedBackend(tiny_model(), kv_tokens=4096).open("s")
    session.append([Text("a")])
    rule = Constraint("regex", "[a-z]*x")
    async for _ in session.generate(SamplingParams(max_tokens=4000), rule):
        break
    print("done")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


async def test_the_default_pool_holds_a_conversation():
    """Without kv_tokens the pool is sized by the machine, and the context by the model."""
    backend = EmbeddedBackend(tiny_model())
    assert backend.capabilities.max_context == 4096
    assert backend.count("yes") == 1
    await backend.aclose()


async def test_a_model_without_a_chat_template_has_no_chat_format():
    """Asking for the chat format of such a model is Unsupported; plain text works."""
    model = dataclasses.replace(tiny_model(), chat_format=None)
    backend = EmbeddedBackend(model, kv_tokens=256)
    with pytest.raises(Unsupported, match="chat template"):
        _ = backend.chat
    assert (await text(backend, "a")) is not None
    await backend.aclose()


async def test_two_models_share_nothing():
    """Two models in one process give each its own texts, whatever the order of calls."""
    prompts = ["the user and the system " * 6]
    alone = []
    for seed in (0, 1):
        backend = EmbeddedBackend(tiny_model(seed), kv_tokens=512)
        alone.append(await text(backend, prompts[0]))
        await backend.aclose()
    both = [EmbeddedBackend(tiny_model(seed), kv_tokens=512) for seed in (0, 1)]
    order = [0, 1, 0, 1, 1, 0]
    assert [await text(both[i], prompts[0]) for i in order] == [alone[i] for i in order]
    assert alone[0] != alone[1]
    for backend in both:
        await backend.aclose()
