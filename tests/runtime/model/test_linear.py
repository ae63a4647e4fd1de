"""The kinds of linear layer against plain multiplication in float32."""

import pytest
import torch

from phloem.runtime.model.linear import FEW_ROWS, Blocks4, Dense, Int4, Int8


def random_blocks(outputs: int, inputs: int) -> Blocks4:
    """A 4-bit matrix with weights around zero."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    scale = (torch.rand(outputs, inputs // 32) * 0.01 + 0.001).half()
    return Blocks4.pack(q, scale, (scale * -7.5).half())


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over RMS of what was expected."""
    return float((got.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_quantised_layers_multiply_by_the_weights_they_hold(rows, with_bias):
    """For few rows and for many, with and without bias, the error is that of bfloat16."""
    torch.manual_seed(0)
    blocks = random_blocks(48, 128)
    weight = blocks.dequantize()
    bias = torch.randn(48).bfloat16() if with_bias else None
    x = torch.randn(rows, 128).bfloat16()
    exact = x.float() @ weight.T + (0 if bias is None else bias.float())
    q, scale = Int8.quantize(weight)
    held = (q * scale.float()[:, None]) @ x.float().T
    assert relative_error(Dense(weight.bfloat16(), bias)(x), exact) < 0.01
    assert relative_error(Int4(blocks, bias)(x), exact) < 0.01
    exact8 = held.T + (0 if bias is None else bias.float())
    assert relative_error(Int8(q, scale, bias)(x), exact8) < 0.01


def test_rounding_to_8_bits_is_within_half_a_step():
    """Every weight is at most half a step from what is held, and zero rows stay zero."""
    weight = torch.randn(8, 64)
    weight[3] = 0
    q, scale = Int8.quantize(weight)
    step = scale.float()[:, None]
    assert ((q * step - weight).abs() <= step * 0.51 + 0.01 * weight.abs()).all()
    assert (q[3] == 0).all()


def test_the_4_bit_kernel_says_which_sizes_it_takes():
    """Outputs in sixteens, inputs in groups of 32."""
    assert Int4.fits(576, 1536)
    assert not Int4.fits(8, 64)
    assert not Int4.fits(16, 48)
