"""The engine's numbers as Prometheus series.

What lives here: `EngineCollector`, with every name, unit and help text. What does not: counting
(`engine/stats.py`) and HTTP (`server/http/metrics.py` registers the collector).

Every series exists from the first scrape, at 0, also before the model is loaded: one that appears
with its first event breaks `rate()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phloem.runtime.engine.stats import Histogram, Stats

__all__ = ["ERRORS", "TOKENS", "Counting", "EngineCollector"]

TOKENS = ("prompt", "reused", "prefilled", "generated", "forced", "drafted", "accepted", "scored")
ERRORS = (
    "Cancelled", "ConstraintError", "DeadlineExceeded", "EngineError", "OutOfMemory", "Overloaded",
    "PromptTooLong",
)  # fmt: skip

_COUNTERS = (
    ("passes", "Forward passes"),
    ("rows", "Rows of forward passes"),
    ("suspended", "Times a step gave its memory up, to go on later"),
    ("shrunk", "Forward passes tried again smaller, for lack of memory"),
    ("evicted_pages", "KV pages that the device's prefix cache gave up"),
    ("offloaded_pages", "KV pages copied to host memory"),
    ("restored_pages", "KV pages copied back from host memory"),
)
_GAUGES = (
    ("running", "Steps that are computed now"),
    ("queued", "Steps that wait"),
    ("pages", "KV pages of the pool"),
    ("free_pages", "KV pages that nobody needs"),
    ("cached_pages", "KV pages that only the prefix cache keeps"),
    ("pinned_pages", "KV pages of pinned prefixes"),
    ("host_pages", "KV pages of host memory"),
    ("free_host_pages", "KV pages of host memory that nobody needs"),
)
_HISTOGRAMS = (
    ("first_token_s", "first_token_seconds", "A step's arrival to its first token"),
    ("inter_token_s", "inter_token_seconds", "One token of a step to the next"),
    ("queue_s", "queue_seconds", "A step's arrival to its start"),
)


@runtime_checkable
class Counting(Protocol):
    """A backend that counts, as the embedded one does."""

    def stats(self) -> Stats | None:
        """What it has counted; None before there is anything to count."""
        ...


class EngineCollector(Collector):
    """Reads an engine's counters whenever it is scraped; `read` gives None while there is none."""

    def __init__(self, read: Callable[[], Stats | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The series as they stand."""
        stats = self._read() or Stats()
        for name, about in _COUNTERS:
            yield CounterMetricFamily(f"phloem_engine_{name}", about, getattr(stats, name))
        for name, about in _GAUGES:
            yield GaugeMetricFamily(f"phloem_engine_{name}", about, getattr(stats, name))
        yield _steps(stats)
        tokens = CounterMetricFamily("phloem_engine_tokens", "Tokens by kind", labels=["kind"])
        for kind in TOKENS:
            tokens.add_metric([kind], getattr(stats.usage, kind))
        yield tokens
        errors = CounterMetricFamily("phloem_engine_errors", "Errors by class", labels=["type"])
        for kind in sorted({*ERRORS, *stats.errors}):
            errors.add_metric([kind], stats.errors[kind])
        yield errors
        for field, name, about in _HISTOGRAMS:
            yield _histogram(f"phloem_engine_{name}", about, getattr(stats, field))


def _steps(stats: Stats) -> CounterMetricFamily:
    steps = CounterMetricFamily("phloem_engine_steps", "Steps, by how they ended", labels=["end"])
    for end in ("finished", "failed", "cancelled"):
        steps.add_metric([end], getattr(stats, end))
    return steps


def _histogram(name: str, about: str, values: Histogram) -> HistogramMetricFamily:
    counts = [str(bound) for bound in values.bounds] + ["+Inf"]
    buckets = list(zip(counts, accumulate(values.counts), strict=True))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=values.total)
