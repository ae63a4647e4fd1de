"""The GGUF reader and the block formats, against files and values of the gguf library."""

import struct

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as reference

from phloem.errors import ModelError
from phloem.runtime.model.config import config_from_gguf
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.linear import Blocks4
from phloem.runtime.model.quants import FORMATS, Q4_0, Q4_1, dequantize, split_4_bit
from phloem.runtime.model.weights import GgufWeights

LLAMA = {
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 1,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def random_blocks(kind: int, count: int) -> np.ndarray:
    """Random bytes whose scales are finite half-precision numbers."""
    values, size = FORMATS[kind]
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    # Clear the top exponent bit of every 16-bit word: all half-precision scales are finite.
    if values > 1:
        blocks[:, 1::2] &= 0xBF
    return blocks


@pytest.mark.parametrize("kind", sorted(FORMATS))
@pytest.mark.filterwarnings("ignore:invalid value")
def test_each_block_format_means_what_the_reference_says(kind):
    """Dequantised values are bit for bit those of the gguf library."""
    blocks = random_blocks(kind, 50)
    expected = reference(blocks, gguf.GGMLQuantizationType(kind)).reshape(-1)
    assert np.array_equal(dequantize(blocks, kind), expected, equal_nan=True)


@pytest.mark.parametrize("kind", [Q4_0, Q4_1])
def test_four_bit_blocks_are_split_without_loss(kind):
    """Integers, scale and minimum give exactly the dequantised weights."""
    blocks = random_blocks(kind, 12)
    q, scale, minimum = (torch.from_numpy(part) for part in split_4_bit(blocks, kind))
    packed = Blocks4.pack(q.view(6, 64), scale.view(6, 2), minimum.view(6, 2))
    assert torch.equal(packed.integers(), q.view(6, 64))
    expected = torch.from_numpy(dequantize(blocks, kind)).view(6, 64)
    assert torch.equal(packed.dequantize(), expected)


def write(path, tensors, arch="llama", settings=LLAMA):
    """A GGUF file by the gguf library."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in settings.items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.rope.freq_base", 5000.0)
    writer.add_token_list(["a", "é", "c"])
    writer.add_bool("flag", True)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_a_file_is_read_as_it_was_written(tmp_path):
    """Metadata of all kinds, shapes and values come back."""
    values = np.arange(96 * 64, dtype=np.float32).reshape(96, 64)
    half = np.arange(64, dtype=np.float16)
    file = write(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": values, "output_norm.weight": half})
    assert file.meta["tokenizer.ggml.tokens"] == ["a", "é", "c"]
    assert file.meta["flag"] is True
    assert file.meta["llama.rope.freq_base"] == 5000.0
    assert torch.equal(file.floats("blk.0.ffn_up.weight"), torch.from_numpy(values))
    assert torch.equal(file.floats("output_norm.weight"), torch.arange(64.0))


def test_the_configuration_comes_from_the_metadata(tmp_path):
    """Sizes are read, and a missing output matrix means a tied head."""
    file = write(tmp_path / "m.gguf", {"output_norm.weight": np.ones(64, np.float32)})
    config = config_from_gguf(file.meta, frozenset(file.tensors))
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.mlp_size, config.layers) == (3, 96, 1)
    assert config.tied_head
    assert config.rope_theta == 5000.0
    assert not config_from_gguf(file.meta, frozenset({"output.weight"})).tied_head


@pytest.mark.parametrize(("arch", "moved"), [("llama", True), ("qwen2", False)])
def test_rows_of_q_and_k_return_to_their_order(tmp_path, arch, moved):
    """llama.cpp's interleaved rows are undone for architecture llama, and only there."""
    heads, head_dim = 4, 16
    original = np.arange(heads * head_dim, dtype=np.float32)[:, None].repeat(64, 1)
    stored = original
    if moved:  # as llama.cpp's converter permutes
        pairs = original.reshape(heads, 2, head_dim // 2, 64)
        stored = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(original.shape))
    file = write(tmp_path / "m.gguf", {"blk.0.attn_q.weight": stored}, arch)
    got = GgufWeights(file).tensor("model.layers.0.self_attn.q_proj.weight")
    assert torch.equal(got, torch.from_numpy(original))


def test_four_bit_rows_return_to_their_order_too(tmp_path):
    """The 4-bit form of a Q projection dequantises to the same rows as the float form."""
    rng = np.random.default_rng(0)
    blocks = gguf.quants.quantize(
        rng.standard_normal((64, 64), np.float32), gguf.GGMLQuantizationType.Q4_1
    )
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in LLAMA.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_token_list(["a"])
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = GgufWeights(GgufFile(tmp_path / "m.gguf"))
    name = "model.layers.0.self_attn.q_proj.weight"
    blocks4 = weights.blocks4(name)
    assert blocks4 is not None
    assert torch.equal(blocks4.dequantize(), weights.tensor(name))


def test_broken_files_are_refused_with_their_path(tmp_path):
    """Another kind of file, a cut file and an unknown format are model errors."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\3\4 this is a zip file, not a model")
    with pytest.raises(ModelError, match=r"m\.gguf.*not a GGUF file"):
        GgufFile(path)
    file = write(path, {"output_norm.weight": np.ones(64, np.float32)})
    whole = path.read_bytes()
    path.write_bytes(whole[:300])
    with pytest.raises(ModelError, match="header"):
        GgufFile(path)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: file.tensors["output_norm.weight"].offset + 8])
    with pytest.raises(ModelError, match="beyond its end"):
        GgufFile(cut).floats("output_norm.weight")


def test_an_empty_file_and_a_future_version_are_refused(tmp_path):
    """Nothing to read, or a version we don't know, is a clear error."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="empty"):
        GgufFile(path)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 9, 0, 0))
    with pytest.raises(ModelError, match="version 9"):
        GgufFile(path)


def test_another_architecture_is_refused_by_name():
    """The error names the architecture, and the backend that runs it."""
    with pytest.raises(ModelError, match="'mamba'") as error:
        config_from_gguf({"general.architecture": "mamba"}, frozenset())
    assert "SGLang backend" in error.value.hint


def test_missing_metadata_is_refused_by_its_key(tmp_path):
    """A file without a needed key names the key."""
    file = write(tmp_path / "m.gguf", {"output_norm.weight": np.ones(64, np.float32)}, settings={})
    with pytest.raises(ModelError, match=r"llama\.attention\.head_count"):
        GgufWeights(file)
