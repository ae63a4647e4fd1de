"""The engine's numbers as a scraper sees them."""

import asyncio
import subprocess
import sys
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from phloem.errors import DeadlineExceeded, PromptTooLong
from phloem.programs.protocol import SamplingParams, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.engine.stats import Histogram
from phloem.runtime.metrics import ERRORS, TOKENS, Counting, EngineCollector
from phloem.runtime.model.tiny import tiny_model


def scrape(read):
    """All samples: (name, labels) -> value."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(read))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("phloem_engine_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def say(backend, prompt, **params):
    """One step's result."""
    session = await backend.open("s", **params.pop("opened", {}))
    session.append([Text(prompt)])
    asked = SamplingParams(**{"temperature": 0, "max_tokens": 5, "ignore_eos": True, **params})
    return [item async for item in session.generate(asked)][-1]


async def test_every_series_is_there_before_the_model_is_loaded():
    """All kinds of tokens and errors are exposed at 0, and no series appears later."""
    backend = EmbeddedBackend(tiny_model(), kv_tokens=512)
    assert isinstance(backend, Counting)
    before = scrape(backend.stats)
    assert set(before.values()) == {0}
    for kind in TOKENS:
        assert ("tokens_total", kind) in before
    for kind in ERRORS:
        assert ("errors_total", kind) in before
    await say(backend, "the user")
    with pytest.raises(PromptTooLong):
        await say(backend, "the user", max_tokens=9999)
    assert set(scrape(backend.stats)) == set(before)
    await backend.aclose()


async def test_the_counters_add_up_to_what_the_steps_told():
    """Tokens are the sums of the steps' usage; each token has a time; pages add up."""
    backend = EmbeddedBackend(tiny_model(), kv_tokens=512)
    results = await asyncio.gather(*(say(backend, "the answer is " * 3) for _ in range(3)))
    seen = scrape(backend.stats)
    for kind in TOKENS:
        assert seen["tokens_total", kind] == sum(getattr(r.usage, kind) for r in results)
    assert seen["steps_total", "finished"] == 3
    assert seen["first_token_seconds_count",] == seen["queue_seconds_count",] == 3
    assert seen["inter_token_seconds_count",] == 3 * 5 - 3
    assert seen["first_token_seconds_sum",] > 0
    assert seen["passes_total",] == backend.engine.stats().passes > 0
    assert seen["running",] == seen["queued",] == 0
    assert seen["free_pages",] + seen["cached_pages",] == seen["pages",] == 32
    await backend.aclose()


async def test_errors_are_counted_by_class_and_logged(caplog):
    """A refusal, a deadline and a cancelled step each count once, and say so in the log."""
    caplog.set_level("INFO")
    backend = EmbeddedBackend(tiny_model(), kv_tokens=512)
    with pytest.raises(PromptTooLong):
        await say(backend, "the user", max_tokens=9999)
    with pytest.raises(DeadlineExceeded):
        await say(backend, "the user", opened={"deadline": time.monotonic() - 1})
    session = await backend.open("c")
    session.append([Text("a")])
    stream = session.generate(SamplingParams(max_tokens=300, ignore_eos=True))
    await anext(stream)
    await stream.aclose()
    backend.engine.audit()
    seen = scrape(backend.stats)
    for kind in ("PromptTooLong", "DeadlineExceeded", "Cancelled"):
        assert seen["errors_total", kind] == 1
    assert (seen["steps_total", "failed"], seen["steps_total", "cancelled"]) == (2, 1)
    assert "PromptTooLong" in caplog.text
    assert "DeadlineExceeded" in caplog.text
    assert seen["tokens_total", "generated"] > 0, "a step that ended early counts its tokens"
    await backend.aclose()


def test_a_histogram_counts_up_to_its_bounds():
    """A value on a bound belongs below it; one above all bounds is counted too."""
    values = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5):
        values.observe(value)
    values.observe(7.0, 2)
    assert values.counts == [2, 1, 2]
    assert values.total == pytest.approx(14.65)


def test_the_collector_imports_no_torch():
    """A server that is scraped before its engine is loaded stays light."""
    code = "import sys, phloem.runtime.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
