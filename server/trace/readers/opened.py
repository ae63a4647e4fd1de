"""Readers by what the command line calls their sources.

What lives here: `open_reader`. What does not: reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from phloem.errors import ConfigError
from phloem.server.trace.options import parse_sink
from phloem.server.trace.reader import TraceReader
from phloem.server.trace.readers.jsonl import JsonlReader

__all__ = ["open_reader"]


def open_reader(source: str, environment: Mapping[str, str]) -> TraceReader:
    """The reader of a folder of JSONL files, a journal's file, `es:URL`, or the address of a
    running phloem or of Elasticsearch (it is asked which). Raises `ConfigError`."""
    kind, _, rest = source.partition(":")
    if kind == "jsonl":
        return JsonlReader(Path(rest))
    if kind in {"es", "elasticsearch"}:
        return _load("elastic", "ElasticReader")(parse_sink(source, environment).address)
    if kind in {"http", "https"}:
        if _is_elasticsearch(source):
            return _load("elastic", "ElasticReader")(source)
        return _load("remote", "RemoteReader")(source, environment.get("PHLOEM_API_KEY"))
    path = Path(source)
    if path.is_dir():
        return JsonlReader(path)
    if path.is_file():
        store = importlib.import_module("phloem.server.journal.store").Store(path)
        return _load("journal", "JournalReader")(store)
    raise ConfigError(
        f"{source!r} is no source of traces",
        hint="name a folder of JSONL files, a journal's file, es:URL, or a server's address",
    )


def _is_elasticsearch(url: str) -> bool:
    try:
        reply = httpx.get(url, timeout=10)
    except httpx.HTTPError as error:
        raise ConfigError(f"the source of traces can't be reached: {error}") from None
    product: str | None = reply.headers.get("x-elastic-product")
    return product == "Elasticsearch"


def _load(module: str, name: str) -> Callable[..., TraceReader]:
    found: Callable[..., TraceReader] = getattr(
        importlib.import_module(f"phloem.server.trace.readers.{module}"), name
    )
    return found
