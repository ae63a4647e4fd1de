"""Rotary position embedding (Su et al. 2021, RoFormer) and its frequency scalings.

What lives here: inverse frequencies, and the rotation in the half-split layout of Hugging
Face checkpoints (element i pairs with element i + head_dim / 2). What does not: undoing the
interleaved layout of GGUF files (`weights.py`).
"""

from __future__ import annotations

import math

import torch

from phloem.runtime.model.config import DecoderConfig, RopeScaling

__all__ = ["Rope", "rotate"]


class Rope:
    """Gives cos and sin for positions. `freq_factors` [head_dim / 2] divides the frequencies.

    `inverse_frequencies` float32 [head_dim / 2] is the angle of position 1; cos and sin are
    multiplied by `scale`.
    """

    def __init__(self, config: DecoderConfig, freq_factors: torch.Tensor | None = None) -> None:
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        inverse = 1.0 / (config.rope_theta**half)
        self.scale = 1.0
        if freq_factors is not None:
            inverse = inverse / freq_factors
        elif config.rope_scaling is not None:
            inverse, self.scale = _scaled(inverse, config, config.rope_scaling)
        self.inverse_frequencies = inverse

    def to(self, device: torch.device) -> Rope:
        """Move the frequencies to `device`; returns self."""
        self.inverse_frequencies = self.inverse_frequencies.to(device)
        return self

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """cos and sin for `positions` [rows], as one tensor [2, rows, 1, head_dim]."""
        angles = positions.to(torch.float32)[:, None] * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)
        table = torch.stack((angles.cos(), angles.sin())) * self.scale
        return table.to(dtype)[:, :, None, :]


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate `x` [rows, heads, head_dim] by the `table` of `Rope` [2, rows, 1, head_dim]."""
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * table[0] + swapped * table[1]


def _scaled(
    inverse: torch.Tensor, config: DecoderConfig, scaling: RopeScaling
) -> tuple[torch.Tensor, float]:
    if scaling.kind == "linear":
        return inverse / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(inverse, scaling), 1.0
    return _yarn(inverse, config, scaling)


def _llama3(inverse: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: keep short wavelengths, divide long ones, blend between (Meta's model card)."""
    turns = scaling.original_positions * inverse / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * inverse / scaling.factor + blend * inverse


def _yarn(
    inverse: torch.Tensor, config: DecoderConfig, scaling: RopeScaling
) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023): a ramp over dimensions between beta_fast and beta_slow turns."""

    def dimension(turns: float) -> float:
        ratio = scaling.original_positions / (turns * 2 * math.pi)
        return config.head_dim * math.log(ratio) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    high += 0.001 if high == low else 0
    steps = torch.arange(config.head_dim // 2, dtype=torch.float32)
    stretch = ((steps - low) / (high - low)).clamp(0, 1)
    scaled = inverse / scaling.factor * stretch + inverse * (1 - stretch)
    attention = scaling.attention_factor
    if attention is None:
        attention = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return scaled, attention
