"""Small random models of each family, saved by transformers and read from their folders."""

import json

import pytest
import torch
import transformers

from phloem.errors import ModelError
from phloem.runtime.model.config import config_from_huggingface
from phloem.runtime.model.convert import assemble, convert
from phloem.runtime.model.weights import SafetensorsWeights

SIZES = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA = {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 16}
VARIANTS = {
    "llama": ("Llama", {}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "llama-multi-head": ("Llama", {"num_key_value_heads": 6}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "rope_theta": 100000.0}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma3": ("Gemma3", {**GEMMA, "query_pre_attn_scalar": 24}),
    "gemma3-scaled": (
        "Gemma3",
        {
            **GEMMA,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "layer_types": ["full_attention", *["sliding_attention"] * 5, "full_attention"],
        },
    ),
    "qwen3-window": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
    ),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1}),
    "qwen3-tied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_logits_equal_transformers(variant, tmp_path, pages):
    """Each family and option gives the logits that transformers gives for the same weights."""
    torch.manual_seed(0)
    family, options = VARIANTS[variant]
    made = getattr(transformers, f"{family}{'Text' * (family == 'Gemma3')}Config")
    config = made(**{**SIZES, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # transformers leaves them at one and zero
            parameter.copy_(torch.randn_like(parameter) * 0.3 + ("norm" in name))
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    weights = SafetensorsWeights(tmp_path)
    decoder = assemble(weights.config, convert(weights, "float32"), torch.device("cpu"))
    ids = torch.randint(160, (100,)).tolist()
    expected = model(torch.tensor([ids])).logits[0]
    runner = pages(decoder)
    got = torch.cat([runner.forward({"a": part})["a"] for part in (ids[:70], ids[70:99], ids[99:])])
    assert (got - expected).abs().max() < 1e-3 * expected.abs().max().clamp_min(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["Gemma2ForCausalLM"]}, "Gemma2ForCausalLM"),
        ({"architectures": ["Gemma3ForCausalLM"], "final_logit_softcapping": 30.0}, "softcapping"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, "window"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(change, named):
    """An unknown architecture or option is an error that names it and the SGLang backend."""
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], **change}
    with pytest.raises(ModelError, match=named) as error:
        config_from_huggingface(config)
    assert "SGLang" in error.value.hint


def test_a_sharded_folder_that_lacks_a_shard_is_refused(tmp_path):
    """A missing tensor or file is an error that names it."""
    config = {**SIZES, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"weight_map": {"model.embed_tokens.weight": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = SafetensorsWeights(tmp_path)
    with pytest.raises(ModelError, match=r"model-1\.safetensors"):
        weights.tensor("model.embed_tokens.weight")
    with pytest.raises(ModelError, match=r"lacks the tensor model\.norm\.weight"):
        weights.tensor("model.norm.weight")
