"""`load_model` from GGUF files and safetensors folders, with its cache and its refusals."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from phloem.errors import ConfigError, ModelError, Unsupported
from phloem.runtime.model import load, text
from phloem.runtime.model.cache import cache_dir
from phloem.runtime.model.load import load_model
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.tiny import CHATML, tiny_tokenizer

HIDDEN, MLP, VOCAB, LAYERS = 64, 96, 320, 2
SHAPES = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_proj": (64, HIDDEN),
    "self_attn.k_proj": (32, HIDDEN),
    "self_attn.v_proj": (32, HIDDEN),
    "self_attn.o_proj": (HIDDEN, 64),
    "mlp.gate_proj": (MLP, HIDDEN),
    "mlp.up_proj": (MLP, HIDDEN),
    "mlp.down_proj": (HIDDEN, MLP),
}
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def own_cache(request, tmp_path, monkeypatch):
    """A cache directory of the test's own, except where the real model is used.

    The compiled decoder is shared with the user's: it would take minutes to build for a test.
    """
    if request.node.get_closest_marker("model") is not None:
        return
    compiled = cache_dir() / "native"
    compiled.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(compiled)
    monkeypatch.setenv("PHLOEM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tensors():
    """The weights of a small Llama, rounded to what Q4_1 holds."""
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1

    def matrix(shape):
        raw = gguf.quants.quantize(rng.standard_normal(shape, np.float32) * 0.3, kind)
        return gguf.quants.dequantize(raw, kind)

    found = {
        f"model.layers.{i}.{name}.weight": matrix(shape)
        if len(shape) == 2
        else np.ones(shape, np.float32)
        for i in range(LAYERS)
        for name, shape in SHAPES.items()
    }
    found["model.embed_tokens.weight"] = rng.standard_normal((VOCAB, HIDDEN), np.float32)
    found["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    return found


@pytest.fixture
def folder(tmp_path, tensors):
    """The model as a safetensors folder."""
    path = tmp_path / "small"
    path.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(tiny_tokenizer().to_json())
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    save_file({k: torch.from_numpy(v) for k, v in tensors.items()}, path / "model.safetensors")
    return path


@pytest.fixture
def gguf_file(tmp_path, tensors):
    """The model as a GGUF file with Q4_1 matrices."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_block_count(LAYERS)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    model = json.loads(tiny_tokenizer().to_json())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens += [f"<unused{i}>" for i in range(VOCAB - len(tokens))]
    writer.add_token_list(tokens[:VOCAB])
    writer.add_token_types([3] * 3 + [1] * (VOCAB - 3))
    writer.add_token_merges(
        [" ".join(pair) for pair in model["merges"] if "".join(pair) in tokens[:VOCAB]]
    )
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, values in tensors.items():
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", values)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", values)
        else:
            layer, _, rest = name.removeprefix("model.layers.").partition(".")
            target = f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"
            for part, heads in {"attn_q.": 4, "attn_k.": 2}.items():
                if part in target:  # as llama.cpp's converter permutes
                    pairs = values.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2)
                    values = np.ascontiguousarray(pairs.reshape(values.shape))
            if values.ndim == 1:
                writer.add_tensor(target, values)
            else:
                writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_and_a_gguf_file_of_the_same_weights_agree(folder, gguf_file, pages):
    """Both formats give the same tokens, chat format, limits and float32 logits."""
    a, b = load_model(folder, dtype="float32"), load_model(gguf_file, dtype="float32")
    ids = a.tokenizer.encode("yes because the answer is no")
    assert ids == b.tokenizer.encode("yes because the answer is no")
    assert a.eos_ids == b.eos_ids == {2}
    assert a.chat.prefix == b.chat.prefix
    assert (a.name, b.name) == ("small", "small")
    assert a.decoder.max_positions == b.decoder.max_positions == 128
    expected = pages(a.decoder).logits(ids)
    torch.testing.assert_close(pages(b.decoder).logits(ids), expected, atol=1e-4, rtol=1e-4)
    assert a.fingerprint != b.fingerprint


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_other_weight_formats_stay_near_float32(gguf_file, pages, monkeypatch, dtype, compiled):
    """Few rows and many rows alike, logits differ by a few percent of their spread."""
    if not compiled:
        monkeypatch.setattr(load, "native_decoder", lambda *_: None)
    exact = load_model(gguf_file, dtype="float32")
    other = load_model(gguf_file, dtype=dtype)
    assert other.dtype == dtype
    ids = exact.tokenizer.encode("yes because the answer is no")
    expected = pages(exact.decoder).logits(ids)
    for got in (
        pages(other.decoder).logits(ids),
        torch.cat([pages(other.decoder).logits(ids[:n])[-1:] for n in range(1, len(ids) + 1)]),
    ):
        assert (got - expected).norm() / expected.norm() < 0.05


def test_auto_takes_the_files_own_4_bits_on_a_cpu(folder, gguf_file, monkeypatch):
    """4-bit files are held so; others in bfloat16 where the CPU has it, else in float32."""
    assert load_model(gguf_file, device="cpu").dtype == "int4"
    monkeypatch.setattr(load, "_fast_bfloat16", lambda: True)
    assert load_model(folder, device="cpu").dtype == "bfloat16"
    monkeypatch.setattr(load, "_fast_bfloat16", lambda: False)
    assert load_model(folder, device="cpu").dtype == "float32"


def test_the_second_load_of_a_gguf_file_converts_nothing(gguf_file, pages, monkeypatch):
    """Converted weights and tokenizer come from the cache, and are the same."""
    first = load_model(gguf_file, dtype="float32")
    monkeypatch.setattr(load, "convert", None)
    monkeypatch.setattr(text, "tokenizer_json_from_gguf", None)
    second = load_model(gguf_file, dtype="float32")
    ids = first.tokenizer.encode("yes")
    assert torch.equal(pages(first.decoder).logits(ids), pages(second.decoder).logits(ids))
    assert first.fingerprint == second.fingerprint


def test_a_damaged_cache_is_made_again(gguf_file, tmp_path, pages):
    """Flipped bytes in the cached weights are noticed, and the load goes on."""
    first = load_model(gguf_file, dtype="float32")
    (weights,) = (tmp_path / "cache").rglob("float32.safetensors")
    ids = first.tokenizer.encode("yes")
    expected = pages(first.decoder).logits(ids)
    damaged = bytearray(weights.read_bytes())
    damaged[-100:] = bytes(100)
    weights.unlink()  # the first model still maps the old file
    weights.write_bytes(damaged)
    again = load_model(gguf_file, dtype="float32")
    assert torch.equal(pages(again.decoder).logits(ids), expected)


def test_a_changed_model_is_another_model(folder):
    """The fingerprint follows the weights."""
    before = load_model(folder, dtype="float32").fingerprint
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    assert load_model(copy, dtype="float32").fingerprint == before
    (copy / "tokenizer_config.json").write_text("{}")
    changed = load_model(copy, dtype="float32")
    assert changed.fingerprint != before
    with pytest.raises(Unsupported, match="no chat template"):
        _ = changed.chat


def test_what_ends_an_assistants_message_ends_a_generation(folder):
    """The end of a turn counts beside the model's own end-of-sequence ids; none is an error."""
    generation = folder / "generation_config.json"
    generation.write_text('{"eos_token_id": [0, 5]}')
    assert load_model(folder, dtype="float32").eos_ids == {0, 2, 5}
    generation.unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(folder, dtype="float32").eos_ids == {2}
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="end-of-sequence"):
        load_model(folder, dtype="float32")


def test_a_template_that_cannot_be_cut_still_loads(folder):
    """The model works for plain text; asking for its roles says why there are none."""
    (folder / "chat_template.jinja").write_text("{{ messages | length }}")
    model = load_model(folder, dtype="float32")
    with pytest.raises(Unsupported, match="left out"):
        _ = model.chat


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"device": "abacus"}, "abacus"),
        ({"dtype": "int4"}, "4 bits"),
    ],
)
def test_settings_that_cannot_be_are_refused(folder, arguments, named):
    """An unknown dtype or device, or 4 bits of a model that has none, is a config error."""
    with pytest.raises(ConfigError, match=named):
        load_model(folder, **arguments)


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused_by_what_it_lacks(folder, missing):
    """The error names the missing file or tensor."""
    (folder / missing).unlink()
    named = "lacks the tensor" if missing == "model.safetensors" else re.escape(missing)
    with pytest.raises(ModelError, match=named):
        load_model(folder)


def test_a_broken_configuration_is_refused(folder):
    """Text that is no JSON, and a configuration without its sizes, name the file."""
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(folder)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError, match="lacks 'vocab_size'"):
        load_model(folder)


@pytest.mark.model
def test_a_second_start_reaches_its_first_token_from_the_cache():
    """A fresh process loads the real model without converting it and answers."""
    load_model(dtype="float32")  # fills the cache
    script = Path(__file__).with_name("first_token.py")
    done = subprocess.run(
        [sys.executable, str(script), str(model_path(DEFAULT_MODEL))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "Paris"
