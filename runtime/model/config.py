"""What a decoder looks like, in numbers: `DecoderConfig`, read from Hugging Face or GGUF metadata.

What lives here: the frozen configuration of the Llama family (Llama, SmolLM2, Mistral, Qwen2,
Qwen3) and of Gemma 3, and the two readers. What does not: weights (`weights.py`, `gguf.py`) and
arithmetic (`llama.py`, `gemma.py`). A model that needs arithmetic we don't have is refused here,
by name, before any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from phloem.errors import ModelError

__all__ = ["DecoderConfig", "RopeScaling", "config_from_gguf", "config_from_huggingface"]

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
)  # fmt: skip
GGUF_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
GEMMA_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "max_position_embeddings": 131_072,
    "sliding_window": 4096, "tie_word_embeddings": True, "num_key_value_heads": 4,
}  # fmt: skip
"""What a Gemma 3 `config.json` means where it says nothing."""

GEMMA_PATTERN = 6
"""Every sixth layer of Gemma 3 sees all tokens, where the configuration says nothing else."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the training length.

    `kind` "linear" divides every frequency by `factor`; "llama3" and "yarn" divide the low
    ones only (`rope.py` gives the formulas). `attention_factor` (yarn) scales cos and sin.
    """

    kind: str
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of one decoder. Sizes are in elements, `max_positions` in tokens."""

    family: str
    vocab_size: int
    hidden_size: int
    mlp_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tied_head: bool = True
    qk_norm: bool = False
    """Normalise each query and key head before rotation (Qwen3)."""
    window: int | None = None
    """Sliding window in tokens: a row sees at most this many, itself included (Mistral)."""
    layer_windows: tuple[int | None, ...] = ()
    """Each layer's own window (Gemma 3); layers with one rotate by `local_rope_theta`, unscaled."""
    local_rope_theta: float = 10_000.0
    query_scale: float = 1.0
    """Queries are multiplied by it, beside 1 / sqrt(head_dim) (Gemma 3)."""


def config_from_huggingface(data: Mapping[str, Any]) -> DecoderConfig:
    """Read the content of a `config.json`.

    Raises `ModelError` for an architecture or an option that we lack.
    """
    family = _family(data)
    if family == "gemma3":
        return _gemma3(data)
    if data.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"activation {data['hidden_act']!r}")
    return _common(data, family)


def _common(data: Mapping[str, Any], family: str) -> DecoderConfig:
    for key in SIZES:
        if key not in data:
            raise ModelError(f"config.json lacks {key!r}", hint="take the model's own config.json")
    heads = int(data["num_attention_heads"])
    return DecoderConfig(
        family=family,
        vocab_size=int(data["vocab_size"]),
        hidden_size=int(data["hidden_size"]),
        mlp_size=int(data["intermediate_size"]),
        layers=int(data["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(data.get("num_key_value_heads") or heads),
        head_dim=int(data.get("head_dim") or data["hidden_size"] // heads),
        max_positions=int(data.get("max_position_embeddings", 2048)),
        norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope(data).get("rope_theta") or data.get("rope_theta") or 10_000.0),
        rope_scaling=_scaling(_rope(data), int(data.get("max_position_embeddings", 2048))),
        tied_head=bool(data.get("tie_word_embeddings", False)),
        qk_norm=family in {"qwen3", "gemma3"},
        window=None if family == "gemma3" else _window(data, family),
    )


def _gemma3(data: Mapping[str, Any]) -> DecoderConfig:
    data = {**GEMMA_DEFAULTS, "hidden_act": data.get("hidden_activation"), **data}
    for option in (
        "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention",
        "attention_bias",
    ):  # fmt: skip
        if data.get(option):
            raise _unsupported(f"{option} {data[option]!r}")
    if data["hidden_act"] not in {None, GEMMA_DEFAULTS["hidden_act"]}:
        raise _unsupported(f"activation {data['hidden_act']!r}")
    rope = data.get("rope_parameters") or {}
    full = rope.get("full_attention") or {
        "rope_theta": data.get("rope_theta", 1e6), **(data.get("rope_scaling") or {}),
    }  # fmt: skip
    local = rope.get("sliding_attention") or {}
    common = _common({**data, "rope_parameters": full}, "gemma3")
    pattern = int(data.get("sliding_window_pattern") or GEMMA_PATTERN)
    kinds = data.get("layer_types")
    windows = _windows(common.layers, pattern, int(data["sliding_window"]))
    if kinds is not None:
        window = int(data["sliding_window"])
        windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return replace(
        common,
        layer_windows=windows,
        local_rope_theta=float(local.get("rope_theta") or data.get("rope_local_base_freq") or 1e4),
        query_scale=(common.head_dim / float(data.get("query_pre_attn_scalar", 256))) ** 0.5,
    )


def _windows(layers: int, pattern: int, window: int) -> tuple[int | None, ...]:
    return tuple(None if (i + 1) % pattern == 0 else window for i in range(layers))


def config_from_gguf(meta: Mapping[str, Any], tensor_names: frozenset[str]) -> DecoderConfig:
    """Read GGUF key-value metadata; `tensor_names` tells whether the output head is tied."""
    arch = str(meta.get("general.architecture"))
    if arch not in GGUF_FAMILIES:
        raise _unsupported(f"architecture {arch!r}")

    def get(key: str, default: Any = None) -> Any:
        return meta.get(f"{arch}.{key}", default)

    def need(key: str) -> int:
        if f"{arch}.{key}" not in meta:
            raise ModelError(
                f"the GGUF file lacks the metadata {arch}.{key}", hint="take another file"
            )
        return int(meta[f"{arch}.{key}"])

    heads, hidden = need("attention.head_count"), need("embedding_length")
    gemma = arch == "gemma3"
    window = get("attention.sliding_window")
    return DecoderConfig(
        family=GGUF_FAMILIES[arch],
        vocab_size=len(meta.get("tokenizer.ggml.tokens", [])),
        hidden_size=hidden,
        mlp_size=need("feed_forward_length"),
        layers=need("block_count"),
        heads=heads,
        kv_heads=int(get("attention.head_count_kv", heads)),
        head_dim=int(get("attention.key_length", hidden // heads)),
        max_positions=need("context_length"),
        norm_eps=float(get("attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=float(get("rope.freq_base", 10_000.0)),
        rope_scaling=_gguf_scaling(get, "rope_freqs.weight" in tensor_names),
        tied_head="output.weight" not in tensor_names,
        qk_norm=arch in {"qwen3", "gemma3"},
        window=None if gemma else window,
        layer_windows=_windows(need("block_count"), GEMMA_PATTERN, window) if gemma else (),
    )


def _family(data: Mapping[str, Any]) -> str:
    for name in data.get("architectures") or []:
        if name in FAMILIES:
            return FAMILIES[name]
    named = ", ".join(data.get("architectures") or []) or data.get("model_type", "unknown")
    raise _unsupported(f"architecture {named!r}")


def _rope(data: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes "rope_parameters", earlier versions "rope_scaling".
    return data.get("rope_parameters") or data.get("rope_scaling") or {}


def _scaling(rope: Mapping[str, Any], max_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in {"linear", "llama3", "yarn"}:
        raise _unsupported(f"rope scaling {kind!r}")
    if rope.get("mscale") or rope.get("mscale_all_dim"):
        raise _unsupported("yarn with mscale")
    return RopeScaling(
        kind=kind,
        factor=float(rope.get("factor", 1.0)),
        original_positions=int(rope.get("original_max_position_embeddings") or max_positions),
        low_freq_factor=float(rope.get("low_freq_factor") or 1.0),
        high_freq_factor=float(rope.get("high_freq_factor") or 4.0),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        attention_factor=rope.get("attention_factor"),
        truncate=bool(rope.get("truncate", True)),
    )


def _gguf_scaling(get: Any, has_freq_factors: bool) -> RopeScaling | None:
    kind = get("rope.scaling.type", "none")
    if has_freq_factors:
        # The file's own per-frequency divisors; `weights.py` hands them to the decoder.
        return RopeScaling(kind="factors")
    if kind == "none":
        return None
    if kind not in {"linear", "yarn"}:
        raise _unsupported(f"rope scaling {kind!r}")
    return RopeScaling(
        kind=kind,
        factor=float(get("rope.scaling.factor", 1.0)),
        original_positions=int(get("rope.scaling.original_context_length", 0)),
    )


def _window(data: Mapping[str, Any], family: str) -> int | None:
    window = data.get("sliding_window")
    if window is None or (family.startswith("qwen") and not data.get("use_sliding_window")):
        return None
    if len(set(data.get("layer_types") or ["sliding_attention"])) > 1:
        raise _unsupported("layers with and without a sliding window")
    return int(window)


def _unsupported(what: str) -> ModelError:
    return ModelError(
        f"the embedded engine can't run this model: {what}",
        hint="it runs Llama, SmolLM2, Mistral, Qwen2, Qwen3 and Gemma 3; for any other "
        "architecture serve the model with SGLang and use the SGLang backend "
        "(phloem.runtime.sglang)",
    )
