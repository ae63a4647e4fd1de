"""The compiled library, each instruction set of this CPU, and a maker of native decoders."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phloem.runtime.model.convert import Held, convert
from phloem.runtime.native.abi import Library
from phloem.runtime.native.build import NativeUnavailable, load_library
from phloem.runtime.native.decoder import NativeDecoder

from .support import RandomWeights


@pytest.fixture(scope="session")
def library() -> Library:
    """The compiled library; these tests need a compiler, as CI has."""
    try:
        return load_library()
    except NativeUnavailable as error:
        pytest.skip(f"no native decoder on this machine: {error}")


@pytest.fixture(params=["amx", "avx512bf16", "avx512", "avx2"])
def instruction_set(request: pytest.FixtureRequest, library: Library) -> str:
    """Each instruction set that this CPU runs."""
    name = str(request.param)
    if name not in library.instruction_sets():
        pytest.skip(f"this CPU has no {name}")
    return name


MakeNative = Callable[..., NativeDecoder]


@pytest.fixture
def native(library: Library) -> MakeNative:
    """native(weights, held, threads=, instruction_set=) -> NativeDecoder."""

    def make(
        weights: RandomWeights, held: Held, threads: int = 2, instruction_set: str | None = None
    ) -> NativeDecoder:
        tensors = convert(weights, held)
        return NativeDecoder(library, weights.config, tensors, threads, instruction_set)

    return make
