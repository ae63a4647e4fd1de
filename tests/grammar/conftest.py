"""What the grammar tests share: compilers for the tiny and for the real tokenizer, and masks."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from phloem.grammar.analyser import default_analyser
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.testing import compiler_of
from phloem.runtime.model.load import load_model
from phloem.runtime.model.tiny import tiny_tokenizer


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    """A compiler for the tiny byte-level tokenizer: most characters take several tokens."""
    made = compiler_of(tiny_tokenizer())
    made.timeout = 60.0  # A loaded machine refuses no test.
    return made


@pytest.fixture(scope="session")
def real() -> GrammarCompiler:
    """A compiler for the default model's tokenizer (mark such tests `model`)."""
    return compiler_of(load_model())


@pytest.fixture(scope="session")
def build():
    """`Analyser.build`."""
    return default_analyser().build


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the data sets; tests that need it are skipped where it is absent."""
    found = Path(os.environ.get("PHLOEM_SHARED", Path(__file__).parents[2].parent / "shared"))
    if not (found / "data").is_dir():
        pytest.skip("no data sets: set PHLOEM_SHARED to the folder that holds data/")
    return found / "data"


def allowed(compiler: GrammarCompiler, matcher) -> list[int]:
    """The tokens the matcher's mask allows."""
    mask = np.zeros(compiler.tokenizer.words, dtype=np.int32)
    if not matcher.fill_mask(mask):
        return list(range(compiler.tokenizer.vocab_size))
    return np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist()


@pytest.fixture(scope="session")
def allowed_tokens():
    """The function `allowed`."""
    return allowed


@pytest.fixture(scope="session")
def draw():
    """Play a model with random logits: tokens drawn from the masks until the end or a limit."""

    def play(compiler, constraint, seed, limit=200):
        rng = random.Random(seed)
        matcher = compiler.matcher(constraint)
        tokens: list[int] = []
        while len(tokens) < limit:
            choices = allowed(compiler, matcher)
            token = rng.choice(choices)
            if token in compiler.tokenizer.eos_ids:
                return compiler.tokenizer.ll.decode_bytes(tokens).decode()
            matcher.accept(token)
            tokens.append(token)
        rest = matcher.closing(10_000)
        assert rest is not None
        return compiler.tokenizer.ll.decode_bytes([*tokens, *rest]).decode()

    return play
