"""What rounding costs on the real model, against the exact torch decoder."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from phloem.runtime.model.load import load_model
from phloem.runtime.native.abi import Library
from phloem.runtime.native.decoder import NativeDecoder

from .support import Chunk, Runner

TEXT = (
    "The history of London, the capital city of England and the United Kingdom, extends over two "
    "thousand years. In that time it has become one of the world's most significant financial and "
    "cultural capital cities. It has withstood plague, devastating fire, civil war, bombardment "
    "and riots. The City of London is its historic core and today its primary financial district, "
    "though it now represents a small part of the wider metropolis."
)


@pytest.mark.model
@pytest.mark.parametrize(("dtype", "most_flips"), [("bfloat16", 0.05), ("int4", 0.1)])
def test_perplexity_is_within_one_percent(library: Library, dtype: str, most_flips: float) -> None:
    """Perplexity stays within 1% of float32, and few rows prefer another token."""
    assert library.instruction_sets()
    models = [load_model(dtype=dtype), load_model(dtype="float32", device="cpu")]
    assert isinstance(models[0].decoder, NativeDecoder)
    ids = models[0].tokenizer.encode(TEXT)
    mine, exact = (
        Runner(model.decoder, 16).step(Chunk(0, ids, all_logits=True)) for model in models
    )
    following = torch.tensor(ids[1:])
    ratio = (cross_entropy(mine[:-1], following) - cross_entropy(exact[:-1], following)).exp()
    assert abs(ratio - 1) < 0.01
    assert (mine.argmax(-1) != exact.argmax(-1)).float().mean() <= most_flips
