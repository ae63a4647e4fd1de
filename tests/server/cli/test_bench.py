"""`phloem bench` on the tiny model, saved as a folder: what it prints, and that it adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from phloem.runtime import benchmark
from phloem.runtime.benchmark import Percentiles
from phloem.runtime.model.tiny import CHATML, tiny_tokenizer
from tests.server.cli.conftest import Command


@pytest.fixture
def tiny_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random two-layer Llama with the tiny tokenizer, and few, short rounds."""
    monkeypatch.setattr(benchmark, "PART_S", 0.0)
    monkeypatch.setattr(benchmark, "DECODE_TOKENS", 6)
    config = transformers.LlamaConfig(
        vocab_size=352,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=2,
    )
    folder = tmp_path / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return folder


def test_json_is_one_object_with_all_figures(phloem: Command, tiny_folder: Path) -> None:
    """Standard output holds the object only; the cache reuses all that could be reused."""
    threads = torch.get_num_threads()
    try:
        done = phloem(
            "bench", "--model", tiny_folder, "--dtype", "float32", "--threads", "1", "--json"
        )
    finally:
        torch.set_num_threads(threads)
    assert done.code == 0
    found = json.loads(done.out)
    assert (found["dtype"], found["threads"], found["model"]) == ("float32", 1, "tiny")
    assert list(found["decode_tok_s"]) == ["1", "8", "32"]
    assert all(rate > 0 for rate in [*found["decode_tok_s"].values(), found["prefill_tok_s"]])
    assert found["prefill_tokens"] == pytest.approx(1000, abs=20)
    for times in [*found["inter_token_ms"].values(), *found["first_token_ms"].values()]:
        assert 0 <= times["p50"] <= times["p95"] <= times["p99"]
    assert 0 < found["cache"]["reused"] == found["cache"]["reusable"] < found["cache"]["prompt"]
    assert "32 streams at once" in done.err


def test_a_table_for_people(phloem: Command, tiny_folder: Path) -> None:
    """Without --json the same figures are a table."""
    done = phloem("bench", "--model", tiny_folder)
    assert done.code == 0
    assert "prefill of 10" in done.out
    assert "prompt tokens reused" in done.out


def test_a_model_that_is_not_here_is_an_error_with_the_command_to_get_it(phloem: Command) -> None:
    """Nothing is downloaded; code 2, and nothing on standard output."""
    done = phloem("bench", "--model", "nobody/nothing", "--json")
    assert (done.code, done.out) == (2, "")
    assert "phloem model pull nobody/nothing" in done.err


def test_percentiles_are_by_the_nearest_rank() -> None:
    """Of the times 1 to 100 ms the 50th, 95th and 99th percentile are those."""
    assert Percentiles.of([i / 1000 for i in range(100)]) == Percentiles(50, 95, 99)
    assert Percentiles.of([0.002]) == Percentiles(2, 2, 2)
