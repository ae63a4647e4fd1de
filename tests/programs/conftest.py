"""What the tests of programs share: a scripted engine, a fake retriever, small helpers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import phloem  # noqa: F401 - registers the default parts
from phloem.programs import registry
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits, Query


class FakeRetriever:
    """Answers every query with the same hits; may be slow, or fail."""

    def __init__(self, *texts: str, error: Exception | None = None) -> None:
        self.hits = Hits(tuple(Hit(str(i), text, 1.0 / (i + 1)) for i, text in enumerate(texts)))
        self.error = error
        self.queries: list[Query] = []
        self.gate: asyncio.Event | None = None
        self.log: list[str] = []

    async def search(self, query: Query) -> Hits:
        self.queries.append(query)
        self.log.append("search")
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.hits

    async def aclose(self) -> None:
        pass


@pytest.fixture
def retriever() -> FakeRetriever:
    return FakeRetriever("alpha is first", "beta is second")


@pytest.fixture
def echo() -> Iterator[ScriptedBackend]:
    """An engine that answers every step with the count of the step; it is the default one."""
    count = iter(range(1000))
    backend = ScriptedBackend(lambda *_: f"<{next(count)}>")
    registry.set_default("backend", backend)
    yield backend
    registry.reset("backend")


def effects(state: Any) -> list[tuple[Any, ...]]:
    """A run's effects without what depends on how the program was compiled."""
    found = []
    for event in state.events:
        data = event.to_json()
        if data["type"] in {"ran", "branch_taken"}:
            continue
        dropped = {"run", "seq", "at", "node", "timing", "trace_id", "took_ms", "file", "message"}
        found.append(tuple((k, repr(v)) for k, v in data.items() if k not in dropped))
    return found
