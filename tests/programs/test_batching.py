"""Independent steps share the engine's decode passes, on the tiny model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import phloem as ph
from phloem.programs.executor import loop
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model

TOKENS = 12
"""What one step alone takes in passes: on a busy machine branches do not begin in the same pass."""
PROMPTS = {"a": "First {{ n|default(0) }}", "base": "Base"}


class Passes:
    """A decoder that counts its forward passes."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, batch: Any, kv: Any) -> Any:
        self.count += 1
        return self._decoder.forward(batch, kv)


@pytest.fixture
def engine() -> Iterator[tuple[EmbeddedBackend, Passes]]:
    model = tiny_model()
    passes = Passes(model.decoder)
    backend = EmbeddedBackend(dataclasses.replace(model, decoder=passes))
    yield backend, passes
    loop.call(backend.aclose())


def passes_of(program: ph.Program, engine: tuple[EmbeddedBackend, Passes]) -> int:
    backend, passes = engine
    before = passes.count
    program.run(backend=backend, max_tokens=TOKENS, temperature=0, ignore_eos=True)
    return passes.count - before


@ph.function(prompts=PROMPTS)
def one():
    ph.gen("base")
    with ph.parallel():
        ph.gen("a")


@ph.function(prompts=PROMPTS)
def four():
    ph.gen("base")
    with ph.parallel():
        ph.gen("a")
        ph.gen("a")
        ph.gen("a")
        ph.gen("a")


@ph.function(prompts=PROMPTS)
def fresh_four():
    ph.gen("base")
    w = ph.gen("a", fresh=True)
    x = ph.gen("a", fresh=True)
    y = ph.gen("a", fresh=True)
    z = ph.gen("a", fresh=True)
    return w, x, y, z


@ph.function
def forked(s):
    s += "Base"
    forks = s.fork(4)
    forks += lambda i: f"{i}" + ph.gen("x")
    forks.join()


@ph.function
def single(s):
    s += "Base0" + ph.gen("x")


def test_parallel_steps_share_their_passes(engine: Any) -> None:
    """Four steps in `parallel()` take about as many passes as the longest alone."""
    alone, together = passes_of(one, engine), passes_of(four, engine)
    assert together < alone + TOKENS


def test_fresh_steps_share_their_passes(engine: Any) -> None:
    """Four `fresh=True` steps in a row decode in one batch."""
    assert passes_of(fresh_four, engine) < passes_of(one, engine) + TOKENS


def test_forks_share_their_passes(engine: Any) -> None:
    """Four branches of a fork decode in one batch."""
    assert passes_of(forked, engine) < passes_of(single, engine) + TOKENS
