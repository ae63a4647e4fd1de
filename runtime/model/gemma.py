"""The decoder of Gemma 3 (text), in torch.

What lives here: where its forward pass differs from the Llama family's. What does not: what the
two share (`llama.py`). Follows the Gemma 3 report (Gemma Team 2025): embeddings are scaled by the
root of their size, a norm stands before and after attention and MLP alike, the MLP is GeGLU, and
of every six layers five see a window only and rotate by a frequency base of their own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from phloem.runtime.model.attention import AttentionPlan, plan_attention
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.linear import Linear
from phloem.runtime.model.llama import LayerWeights, LlamaDecoder
from phloem.runtime.model.rope import Rope

__all__ = ["Gemma3Decoder"]


class Gemma3Decoder(LlamaDecoder):
    """A `Decoder` (see `batch.py`). The weights of its norms are float32, with the one added."""

    def __init__(
        self,
        config: DecoderConfig,
        embedding: torch.Tensor,
        layers: list[LayerWeights],
        final_norm: torch.Tensor,
        head: Linear,
        rope_factors: torch.Tensor | None = None,
    ) -> None:
        # Queries are normalised last, before a rotation: a factor on the norm is one on them.
        layers = [
            replace(layer, q_norm=None if q is None else q * config.query_scale)
            for layer, q in ((layer, layer.q_norm) for layer in layers)
        ]
        super().__init__(config, embedding, layers, final_norm, head, rope_factors)
        local = replace(config, rope_theta=config.local_rope_theta, rope_scaling=None)
        self._local_rope = Rope(local).to(embedding.device)
        self._embedding_scale = torch.tensor(
            config.hidden_size**0.5, dtype=embedding.dtype, device=embedding.device
        )

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """Write the rows' KV, and return float32 logits [wanted, vocab_size]."""
        share = self.config.heads // self.config.kv_heads
        plans: dict[int | None, AttentionPlan] = {
            window: plan_attention(batch, kv, share, window)
            for window in set(self.config.layer_windows)
        }
        table, local = (
            rope(batch.positions, self.dtype) for rope in (self._rope, self._local_rope)
        )
        x = functional.embedding(batch.tokens, self._embedding) * self._embedding_scale
        for layer, window, keys, values in zip(
            self._layers, self.config.layer_windows, kv.keys, kv.values, strict=True
        ):
            assert layer.attention_post_norm is not None
            assert layer.mlp_post_norm is not None
            attended = self._attention(
                layer,
                self._norm(x, layer.attention_norm),
                table if window is None else local,
                plans[window],
                keys,
                values,
            )
            x = x + self._norm(attended, layer.attention_post_norm)
            x = x + self._norm(self._mlp(layer, self._norm(x, layer.mlp_norm)), layer.mlp_post_norm)
        x = self._norm(x[batch.logit_rows], self._final_norm)
        return self._head(x).float()

    @staticmethod
    def _mlp(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        return layer.down(functional.gelu(gate, approximate="tanh") * up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), weight.shape, weight, self.config.norm_eps).to(
            x.dtype
        )
