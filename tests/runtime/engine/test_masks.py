"""Sets of tokens as packed bits."""

import numpy as np
import pytest
import torch

from phloem.runtime.engine.masks import everything_but, pack, restrict, unpack


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_masks_hold_what_was_packed(size):
    """Whatever the size, every token comes back as it was put in, and the words are whole."""
    allowed = np.random.default_rng(size).random(size) < 0.5
    mask = pack(allowed)
    assert mask.dtype == np.int32
    assert mask.shape == (-(-size // 32),)
    assert (unpack(mask, size) == allowed).all()


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.98])
def test_others_are_barred(kept):
    """Logits of the mask's tokens stay, all others become -inf, whether few or most are barred."""
    allowed = np.random.default_rng(3).random(100) < kept
    logits = torch.randn(2, 110)
    before = logits.clone()
    restrict(logits[0, :90], pack(allowed))
    expected = torch.from_numpy(allowed[:90])
    assert torch.equal(logits[0, :90].isfinite(), expected)
    assert torch.equal(logits[0, :90][expected], before[0, :90][expected])
    assert torch.equal(logits[0, 90:], before[0, 90:])
    assert torch.equal(logits[1], before[1])


def test_everything_but_a_few():
    """All tokens but the banned ones; the mask is shared, so it can't be changed."""
    mask = everything_but(frozenset({0, 40}), 50)
    assert (~unpack(mask, 50)).nonzero()[0].tolist() == [0, 40]
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = 0
