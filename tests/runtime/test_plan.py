"""The arithmetic of memory against cases that were computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phloem.errors import ConfigError, ModelNotFound
from phloem.runtime.plan import GIB, plan
from phloem.runtime.plan_shapes import KNOWN, read_shape, shape_from_config

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("name", "parameters", "kv"),
    [
        ("llama-3-8b", 8_030_261_248, 128 * KIB),  # 2 x 32 x 8 x 128 x 2 bytes
        ("llama-3-70b", 70_553_706_496, 320 * KIB),  # 2 x 80 x 8 x 128 x 2
        ("llama-2-7b", 6_738_415_616, 512 * KIB),  # 2 x 32 x 32 x 128 x 2: no grouping
        ("mistral-7b", 7_248_023_552, 128 * KIB),
        ("qwen2.5-7b", 7_615_487_488, 56 * KIB),  # 2 x 28 x 4 x 128 x 2
        ("smollm2-135m", 134_515_008, 23_040),  # 2 x 30 x 3 x 64 x 2
    ],
)
def test_parameters_and_kv_by_hand(name: str, parameters: int, kv: int) -> None:
    """Parameter counts (less biases), and KV per token in 16 bit with grouped-query attention."""
    assert KNOWN[name].parameters == parameters
    assert KNOWN[name].kv_bytes(2) == kv


def test_one_gpu_by_hand() -> None:
    """Llama-3-8B on 80 GiB: what is left after weights and reserve, in tokens and requests."""
    found = plan(KNOWN["llama-3-8b"], gpu=80 * GIB, context=8192, concurrency=32)
    one = found.choices[0]
    reserved = (512 + 128 + 2 * 32) * MIB + 8192 * 3 * MIB // 2
    assert one.reserved == reserved
    assert one.kv_tokens == (80 * GIB - reserved - 16_060_522_496) // (128 * KIB) == 428_891
    assert (one.batch, one.fits) == (428_891 // 8192, True)
    assert one.mem_fraction_static == 0.841
    assert found.best is one


def test_tensor_parallel_by_hand() -> None:
    """Llama-3-70B needs two GPUs of 80 GiB in 8 bit and four in 16; KV heads split up to 8."""
    shape = KNOWN["llama-3-70b"]
    full = plan(shape, gpu=80 * GIB, context=8192, concurrency=8)
    assert full.best is not None
    assert full.best.tp == 4
    assert not full.choices[0].fits
    assert full.choices[0].kv_tokens == 0
    half = plan(shape, gpu=80 * GIB, context=8192, concurrency=8, weight_bits=8)
    assert half.best is not None
    assert half.best.tp == 2
    assert [c.kv_per_token // KIB for c in full.choices] == [320, 160, 80, 40, 40]


def test_heads_that_do_not_divide_are_no_choice() -> None:
    """Nine heads run on one GPU only; 28 heads with 4 KV heads on 1, 2 and 4."""
    tiny = plan(KNOWN["smollm2-135m"], gpu=20 * GIB, context=2048, concurrency=4)
    assert [choice.tp for choice in tiny.choices] == [1]
    qwen = plan(KNOWN["qwen2.5-7b"], gpu=80 * GIB, context=2048, concurrency=4)
    assert [choice.tp for choice in qwen.choices] == [1, 2, 4]


def test_eight_bit_kv_halves_it() -> None:
    """KV of 8 bits takes half; impossible numbers are refused."""
    shape = KNOWN["llama-3-8b"]
    assert plan(shape, gpu=GIB, context=1, concurrency=1, kv_bits=8).kv_per_token == 64 * KIB
    for wrong in ({"gpu": 0}, {"context": 0}, {"concurrency": 0}, {"context": 8193}):
        with pytest.raises(ConfigError):
            plan(shape, **({"gpu": GIB, "context": 1, "concurrency": 1} | wrong))


def test_a_config_json_is_read(tmp_path: Path) -> None:
    """A config.json, or a folder with one and weights, whose real size counts."""
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
        "max_position_embeddings": 512, "architectures": ["SomethingNewForCausalLM"],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(str(tmp_path / "config.json"))
    assert shape.kv_bytes(2) == 2 * 2 * 2 * 16 * 2
    assert shape.weight_bytes is None
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    assert read_shape(str(tmp_path)).weight_bytes == 1000


@pytest.mark.parametrize("key", ["kv_lora_rank", "num_experts"])
def test_models_of_other_kinds_are_refused(tmp_path: Path, key: str) -> None:
    """Latent attention and experts are refused; an unknown name says what there is."""
    (tmp_path / "config.json").write_text(json.dumps({key: 8}))
    with pytest.raises(ConfigError, match="can't be planned"):
        read_shape(str(tmp_path))
    with pytest.raises(ModelNotFound, match="llama-3-8b"):
        read_shape("no-such-model")


@pytest.mark.model
def test_a_gguf_file_is_read() -> None:
    """The default model: 23,040 bytes of KV a token, and weights of the size in the file."""
    shape = read_shape("smollm2-135m-instruct")
    assert (shape.layers, shape.kv_bytes(2), shape.tied) == (30, 23_040, True)
    assert shape.weight_bytes is not None
    assert 90e6 < shape.weight_bytes < 100e6


@pytest.mark.parametrize("bits", [0, -4, float("nan"), 65])
def test_widths_that_make_no_sense_are_refused(bits: float) -> None:
    """Weights and KV have more than no bits."""
    shape = KNOWN["llama-3-8b"]
    for given in ({"weight_bits": bits}, {"kv_bits": bits}):
        with pytest.raises(ConfigError, match="bits"):
            plan(shape, gpu=80 * GIB, context=8192, concurrency=1, **given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "wide"}, "no number"),
        ({"hidden_size": None}, "no number"),
        ({"num_attention_heads": 0}, "no number"),
        ({"num_hidden_layers": 0}, "not more than 0"),
    ],
)
def test_a_broken_config_json_is_refused(change: dict[str, object], said: str) -> None:
    """Sizes that are no numbers, or none, are named as the file's fault."""
    sizes = {
        "num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 2,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        shape_from_config(sizes | change, "m", None)


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    """The folder is named, not a key that it lacks."""
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        read_shape(str(tmp_path))
