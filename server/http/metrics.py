"""What the server counts, as Prometheus series that exist from the first scrape.

What lives here: every series of requests, its labels and its meaning. What does not: the engine's
own series (`runtime/metrics.py`, `runtime/host/metrics.py`), and when something is counted
(`generation/account.py`, `programs/`, `context.py`).

Rule: a request is counted once, when it ends; its tokens go into the counters and into the
per-request histograms in the same call, so `sum` of a histogram equals its counter. A request
that ended early counts the tokens it had delivered by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from phloem.programs.events import Event, Retrieved, StepFailed
from phloem.programs.protocol import Usage
from phloem.runtime.engine.stats import Stats
from phloem.runtime.host.metrics import ProcessCollector
from phloem.runtime.host.supervisor import Supervisor
from phloem.runtime.metrics import EngineCollector

__all__ = ["KINDS", "OUTCOMES", "TOKENS", "Metrics"]

KINDS = ("chat", "completion", "generate", "embedding", "run")
OUTCOMES = ("stop", "length", "abort", "timeout", "rejected", "error")
"""stop: ended by itself. length: a step was cut by max_tokens (of n candidates, any one).
abort: cancelled, or the client went away. timeout: the deadline passed. rejected: refused
before any work (too long, queue full, bad constraint). error: anything else."""
RETRIEVALS = ("ok", "partial", "fallback", "error")
"""partial: part of the index did not answer. fallback: another retriever did (or none)."""
TOKENS = ("prompt", "reused", "prefilled", "generated", "forced", "drafted", "accepted", "scored")

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """The series of one application, in a registry of their own."""

    def __init__(
        self,
        running: Callable[[], int],
        queued: Callable[[], int],
        engine: Callable[[], Stats | None],
        process: Callable[[], Supervisor | None],
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))
        self.registry.register(ProcessCollector(process))
        add: dict[str, Any] = {"registry": self.registry}
        self.finished = Counter(
            "phloem_requests_finished", "Requests, by how they ended", ["kind", "reason"], **add
        )
        self.tokens = Counter("phloem_tokens", "Tokens, by what became of them", ["part"], **add)
        self.prompt_tokens = Histogram(
            "phloem_request_prompt_tokens", "Prompt tokens of a request", buckets=_TOKENS, **add
        )
        self.generated_tokens = Histogram(
            "phloem_request_generated_tokens", "Output tokens of a request", buckets=_TOKENS, **add
        )
        self.seconds = Histogram(
            "phloem_request_seconds", "Arrival to end", ["kind"], buckets=_SECONDS, **add
        )
        self.first_token = Histogram(
            "phloem_first_token_seconds", "Arrival to first token", ["kind"],
            buckets=_SECONDS, **add,
        )  # fmt: skip
        self.queue_wait = Histogram(
            "phloem_queue_seconds", "Wait for a place", buckets=_SECONDS, **add
        )
        self.retrievals = Counter(
            "phloem_retrievals", "Retrievals of runs, by how they ended", ["outcome"], **add
        )
        self.http = Counter(
            "phloem_http_responses", "HTTP responses, by class of status", ["status"], **add
        )
        gauges: Mapping[str, tuple[str, Callable[[], int]]] = {
            "phloem_requests_running": ("Requests that use the engine", running),
            "phloem_requests_queued": ("Requests that wait for a place", queued),
        }
        for name, (about, read) in gauges.items():
            Gauge(name, about, **add).set_function(read)
        self._preregister()

    def _preregister(self) -> None:
        """Make every series now: one that appears with its first failure breaks `rate()`."""
        for kind in KINDS:
            for reason in OUTCOMES:
                self.finished.labels(kind, reason)
            self.seconds.labels(kind)
            self.first_token.labels(kind)
        for part in TOKENS:
            self.tokens.labels(part)
        for outcome in RETRIEVALS:
            self.retrievals.labels(outcome)
        for status in ("1xx", "2xx", "3xx", "4xx", "5xx"):
            self.http.labels(status)

    def count(self, kind: str, outcome: str, usage: Usage, seconds: float) -> None:
        """Count a request that ended."""
        self.finished.labels(kind, outcome).inc()
        self.seconds.labels(kind).observe(seconds)
        for part in TOKENS:
            self.tokens.labels(part).inc(getattr(usage, part))
        self.prompt_tokens.observe(usage.prompt)
        self.generated_tokens.observe(usage.generated)

    def count_retrievals(self, events: Iterable[Event]) -> None:
        """Count the retrievals among a run's events."""
        for event in events:
            if isinstance(event, Retrieved):
                outcome = "fallback" if event.fallback else "partial" if event.partial else "ok"
            elif isinstance(event, StepFailed) and event.kind == "retrieve":
                outcome = "error"
            else:
                continue
            self.retrievals.labels(outcome).inc()

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The text for a scraper and its content type, in the format it asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
