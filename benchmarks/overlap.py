"""How well a retrieval overlaps with a step that does not need it.

A program generates and then retrieves, and neither needs the other. Each takes half a second by
itself, on the scripted engine and a retriever that sleeps; together they should take 1.1 times
the longer at most. With the retrieval in a branch (so that it can't be started early) they take
the sum.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import phloem as ph
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits, Query

TOKENS = 50
SECONDS = 0.5
REPEATS = 5


class SlowRetriever:
    """Answers after `SECONDS`."""

    async def search(self, query: Query) -> Hits:
        """One hit."""
        await asyncio.sleep(SECONDS)
        return Hits((Hit("a", query.text, 1.0),))

    async def aclose(self) -> None:
        """Nothing to release."""


@ph.function
def overlapping(s, question):
    """The retrieval is certain, and its arguments are known."""
    s += question + ph.gen("x", max_tokens=TOKENS)
    docs = ph.retrieve("docs", question)
    return len(docs)


@ph.function
def in_turn(s, question):
    """The retrieval depends on the step."""
    s += question + ph.gen("x", max_tokens=TOKENS)
    if s["x"]:
        docs = ph.retrieve("docs", question)
        return len(docs)
    return 0


def seconds(program: ph.Program) -> float:
    """Wall seconds of one run."""

    async def gate() -> None:
        await asyncio.sleep(SECONDS / TOKENS)

    settings: dict[str, Any] = {
        "backend": ScriptedBackend(lambda *_: "x" * TOKENS, gate=gate),
        "retriever": SlowRetriever(),
    }
    started = time.perf_counter()
    program.run(question="q", **settings)
    return time.perf_counter() - started


def main() -> None:
    """Print medians of both, and the step alone for comparison."""
    pairs = [(seconds(in_turn), seconds(overlapping)) for _ in range(REPEATS)]
    apart, together = (statistics.median(times) for times in zip(*pairs, strict=True))
    alone = apart - SECONDS
    longer = max(alone, SECONDS)
    print(f"step alone {alone:.2f} s, retrieval alone {SECONDS:.2f} s, in turn {apart:.2f} s")
    print(f"overlapping {together:.2f} s = {together / longer:.2f} times the longer")


if __name__ == "__main__":
    main()
