"""The decoder of the Llama family: Llama, SmolLM2, Mistral, Qwen2 and Qwen3, in torch.

What lives here: the weights of a layer as a plain record, and the forward pass. What does
not: attention over pages (`attention.py`), how a matrix is stored (`linear.py`), and where
weights come from (`weights.py`). Follows Touvron et al. 2023 (Llama), with grouped-query
attention (Ainslie et al. 2023), RMSNorm (Zhang and Sennrich 2019) and SwiGLU (Shazeer 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from phloem.runtime.model.attention import AttentionPlan, paged_attention, plan_attention
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.linear import Linear
from phloem.runtime.model.rope import Rope, rotate

__all__ = ["LayerWeights", "LlamaDecoder"]


@dataclass(slots=True)
class LayerWeights:
    """One layer. `qkv` and `gate_up` are fused: their outputs lie one after the other.

    The norms after attention and MLP are Gemma's.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    attention_post_norm: torch.Tensor | None = None
    mlp_post_norm: torch.Tensor | None = None


class LlamaDecoder:
    """A `Decoder` (see `batch.py`) of the Llama family.

    `embedding` [vocab, hidden] also sets the type of the hidden state and of the KV.
    """

    def __init__(
        self,
        config: DecoderConfig,
        embedding: torch.Tensor,
        layers: list[LayerWeights],
        final_norm: torch.Tensor,
        head: Linear,
        rope_factors: torch.Tensor | None = None,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._head = head
        self._rope = Rope(config, rope_factors).to(embedding.device)
        self._heads = [config.heads, config.kv_heads, config.kv_heads]

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.vocab_size

    @property
    def max_positions(self) -> int:
        """Longest sequence, in tokens."""
        return self.config.max_positions

    @property
    def device(self) -> torch.device:
        """Where weights and KV live."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the hidden state and of the KV."""
        return self._embedding.dtype

    def new_kv(self, pages: int, page_size: int) -> KVStorage:
        """Zeroed storage for `pages` pages of `page_size` tokens."""
        shape = (pages, page_size, self.config.kv_heads, self.config.head_dim)
        return KVStorage.zeros(self.config.layers, shape, self.dtype, self.device)

    def kv_bytes_per_token(self) -> int:
        """2 * layers * kv_heads * head_dim * bytes of an element."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """Write the rows' KV, and return float32 logits [wanted, vocab_size]."""
        share = self.config.heads // self.config.kv_heads
        plan = plan_attention(batch, kv, share, self.config.window)
        table = self._rope(batch.positions, self.dtype)
        x = functional.embedding(batch.tokens, self._embedding)
        for layer, keys, values in zip(self._layers, kv.keys, kv.values, strict=True):
            x = x + self._attention(
                layer, self._norm(x, layer.attention_norm), table, plan, keys, values
            )
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
        x = self._norm(x[batch.logit_rows], self._final_norm)
        return self._head(x).float()

    def _attention(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        table: torch.Tensor,
        plan: AttentionPlan,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        qkv = layer.qkv(x).view(x.shape[0], sum(self._heads), self.config.head_dim)
        q, k, v = torch.split(qkv, self._heads, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        q, k = rotate(q, table), rotate(k, table)
        return layer.output(paged_attention(q, k, v, keys, values, plan))

    @staticmethod
    def _mlp(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        return layer.down(functional.silu(gate) * up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.norm_eps)
