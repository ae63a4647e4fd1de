"""A BERT encoder in torch, for sentence embeddings.

What lives here: the forward pass (Devlin et al., 2018, post-layer-norm) over weights as
`safetensors` holds them, and mean pooling (Reimers and Gurevych, 2019). What does not: the
tokenizer, batching and which model (`minilm.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention

from phloem.errors import ModelError

__all__ = ["BertConfig", "BertEncoder"]


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The sizes that the forward pass needs."""

    layers: int
    heads: int
    hidden: int
    positions: int
    epsilon: float

    @classmethod
    def read(cls, file: Path) -> BertConfig:
        """From a model folder's `config.json`. Raises `ModelError` for another architecture."""
        given = json.loads(file.read_text())
        if given.get("model_type") != "bert" or given.get("hidden_act") != "gelu":
            raise ModelError(
                f"{file} describes a {given.get('model_type')!r} model; this encoder runs BERT",
                hint="use a sentence-transformers model that is built on BERT",
            )
        return cls(
            layers=given["num_hidden_layers"],
            heads=given["num_attention_heads"],
            hidden=given["hidden_size"],
            positions=given["max_position_embeddings"],
            epsilon=given["layer_norm_eps"],
        )


class BertEncoder:
    """Token ids to one vector per row. Weights are read once; calls share nothing else."""

    def __init__(self, folder: Path) -> None:
        self.config = BertConfig.read(folder / "config.json")
        self._weights = load_file(folder / "model.safetensors")

    @torch.inference_mode()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors, float32 [batch, hidden], of `ids`, int64 [batch, length].

        `mask`, bool [batch, length], is true where a row has a token and not padding.
        """
        state = self._embed(ids)
        allowed = mask[:, None, None, :]
        for layer in range(self.config.layers):
            state = self._layer(f"encoder.layer.{layer}", state, allowed)
        weights = mask[:, :, None].to(state.dtype)
        mean = (state * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)

    def _embed(self, ids: Tensor) -> Tensor:
        words = embedding(ids, self._weights["embeddings.word_embeddings.weight"])
        places = self._weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        first_segment = self._weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", words + places + first_segment)

    def _layer(self, name: str, state: Tensor, allowed: Tensor) -> Tensor:
        batch, length, hidden = state.shape
        heads = (batch, length, self.config.heads, hidden // self.config.heads)
        query, key, value = (
            self._linear(f"{name}.attention.self.{part}", state).view(heads).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        mixed = mixed.transpose(1, 2).reshape(batch, length, hidden)
        mixed = self._linear(f"{name}.attention.output.dense", mixed)
        state = self._norm(f"{name}.attention.output.LayerNorm", mixed + state)
        inner = gelu(self._linear(f"{name}.intermediate.dense", state))
        outer = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", outer + state)

    def _linear(self, name: str, state: Tensor) -> Tensor:
        return linear(state, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, state: Tensor) -> Tensor:
        return layer_norm(
            state,
            (self.config.hidden,),
            self._weights[f"{name}.weight"],
            self._weights[f"{name}.bias"],
            self.config.epsilon,
        )
