"""Writes gemma3.json beside this file: what transformers computes on Gemma 3 270M (base).

Run it by hand (needs transformers and gguf, 10 minutes): python make_gemma3.py. For a few prompts
it records token ids with the begin-of-sequence token, logits of the last position at fixed and
at the best ids, and the greedy continuation with the margin between the two best logits of each
step; and the ids of texts that are hard to tokenise. All in float32.
"""

import json
from pathlib import Path

import torch
from make_goldens import TEXTS, VOCABULARY_STEP
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from phloem.runtime.model.store import model_path

PROMPTS = [
    "The capital of France is",
    "1, 2, 3, 5, 8, 13, 21, 34,",
    "The phloem of a plant carries sugars from its leaves to its roots. " * 48,
]
"""The last one is longer than a window of 512 tokens."""

TOKENS = 32


def main() -> None:
    """Compute everything and write the file."""
    path = model_path("gemma3-270m")
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).eval()

    def ids_of(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    golden = {
        "prompts": [
            prompt_golden(model, text, [tokenizer.bos_token_id, *ids_of(text)]) for text in PROMPTS
        ],
        "texts": [[text, ids_of(text)] for text in TEXTS],
    }
    target = Path(__file__).with_name("gemma3.json")
    target.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


@torch.no_grad()
def prompt_golden(model: torch.nn.Module, text: str, ids: list[int]) -> dict[str, object]:
    """One prompt's numbers."""
    out = model(torch.tensor([ids]), use_cache=True)
    row = out.logits[0, -1]
    kept = sorted({*range(0, len(row), 20 * VOCABULARY_STEP), *row.topk(8).indices.tolist()})
    logits = {str(i): round(float(row[i]), 5) for i in kept}
    greedy, margins = [], []
    for _ in range(TOKENS):
        best = row.topk(2)
        greedy.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
        out = model(torch.tensor([greedy[-1:]]), past_key_values=out.past_key_values)
        row = out.logits[0, -1]
    return {
        "text": text,
        "ids": ids,
        "logits": logits,
        "greedy": greedy,
        "margins": margins,
    }


if __name__ == "__main__":
    main()
