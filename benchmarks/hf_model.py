"""Writes the default model as a Hugging Face folder in bfloat16, for engines that read no GGUF.

    python benchmarks/hf_model.py FOLDER

The weights are the GGUF file's own 4 bits, written out: the same model for every engine.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from phloem.runtime.model.store import DEFAULT_MODEL, model_path


def main() -> None:
    """Read, round and write."""
    folder = sys.argv[1]
    gguf = model_path(DEFAULT_MODEL)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
