"""Sinks by what the command line calls them.

What lives here: `open_sink`. What does not: the names (`options.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from phloem.server.trace.options import Options, SinkSpec
from phloem.server.trace.sinks.base import Sink
from phloem.server.trace.sinks.jsonl import JsonlSink

__all__ = ["open_sink"]


def open_sink(spec: SinkSpec, options: Options) -> Sink:
    """The sink of `spec`, not started. Raises `ConfigError`. Modules whose libraries take long
    to import are loaded for the sinks that are asked for only."""
    if spec.kind == "jsonl":
        return JsonlSink(Path(spec.address))
    if spec.kind == "es":
        make = _load("elastic", "ElasticSink")
        return make(spec.address, options.spool_of(spec.address))
    if spec.kind == "otlp":
        return _load("otlp", "OtlpSink")(spec.address or None)
    return _load("pretty", "PrettySink")()


def _load(module: str, name: str) -> Callable[..., Sink]:
    found: Callable[..., Sink] = getattr(
        importlib.import_module(f"phloem.server.trace.sinks.{module}"), name
    )
    return found
