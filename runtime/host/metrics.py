"""The engine process's own numbers as Prometheus series.

What lives here: `ProcessCollector`. What does not: what the engine in it counts
(`runtime/metrics.py`). An engine in this process has the same series, at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phloem.runtime.host.supervisor import REASONS, Supervisor

__all__ = ["ProcessCollector"]


class ProcessCollector(Collector):
    """Reads a supervisor whenever it is scraped; `read` gives None while there is none."""

    def __init__(self, read: Callable[[], Supervisor | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The series as they stand."""
        found = self._read()
        restarts = CounterMetricFamily(
            "phloem_engine_process_restarts",
            "Engine processes that were replaced, by why",
            labels=["reason"],
        )
        for reason in REASONS:
            restarts.add_metric([reason], found.restarts[reason] if found else 0)
        yield restarts
        yield GaugeMetricFamily(
            "phloem_engine_process_memory_bytes",
            "Memory of the engine process's own, without mapped weights",
            found.memory if found else 0,
        )
        yield GaugeMetricFamily(
            "phloem_engine_process_up",
            "1 while the engine process can work",
            bool(found and found.state == "ready"),
        )
