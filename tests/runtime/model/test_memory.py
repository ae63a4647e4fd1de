"""Zeroed memory that is there at once."""

import pytest
import torch

from phloem.runtime.model.memory import zeros


@pytest.mark.parametrize("shape", [(3,), (1, 7, 2, 64), (513, 16, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_zeros_begin_on_a_cache_line_and_can_be_written(shape, dtype):
    """Size and type are those asked for, all is zero, and vector loads are aligned."""
    made = zeros(shape, dtype)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.data_ptr() % 64 == 0
    assert not made.count_nonzero()
    made[0] = 1
    assert made.sum() == made[0].numel()
