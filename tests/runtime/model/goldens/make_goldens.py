"""Writes smollm2.json beside this file: what transformers computes on the default model.

Run it by hand (needs transformers and gguf, 5 minutes): python make_goldens.py. For a few
prompts it records token ids, logits of the last position at fixed and at the best ids, and the
greedy continuation with the margin between the two best logits of each step; and the ids of a
chat, and of texts that are hard to tokenise. All in float32.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from phloem.runtime.model.store import model_path

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Ein Drache flog über den Fluss — 東京 🦊 — und sagte: ",
    "1, 2, 3, 5, 8, 13, 21, 34,",
    "Water boils at a lower temperature on a mountain because " * 6,
    "The phloem of a plant carries sugars from its leaves to its roots. " * 30,
]
CHAT = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?\n\nBe brief."},
]
TEXTS = [
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\nnewlines\r\n\n\nand   runs of    blanks",
    "don't can't we'll I'd they've it's I'm",
    "x=3.14159; y = 2_000_000; 0xFF 1e-9",
    "naïve café — “quotes” … €100 ©",
    "東京は日本の首都です。 한국어 العربية हिन्दी",
    "emoji 🦊🦊 👩‍👩‍👧‍👦 🇫🇷",
    "<b>html</b> & {\"json\": [1, 2, 3], 'ok': null}",
    "\u0000\u200b\ufeff\u0301",
    "a",
    "",
]
VOCABULARY_STEP = 251


def main() -> None:
    """Compute everything and write the file."""
    path = model_path("smollm2-135m-instruct")
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    golden = {
        "prompts": [prompt_golden(model, tokenizer, text) for text in PROMPTS],
        "chat": {
            "messages": CHAT,
            "ids": tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"],
        },
        "texts": [[t, tokenizer(t, add_special_tokens=False)["input_ids"]] for t in TEXTS],
    }
    target = Path(__file__).with_name("smollm2.json")
    target.write_text(json.dumps(golden) + "\n")


@torch.no_grad()
def prompt_golden(model, tokenizer, text: str) -> dict:
    """Ids, some logits after the last one, and 64 greedy tokens with their margins."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    output = model(torch.tensor([ids]), use_cache=True)
    logits = output.logits[0, -1]
    best = logits.topk(32).indices.tolist()
    sampled = sorted({*range(0, len(logits), VOCABULARY_STEP), *best})
    greedy, margins = [], []
    for _ in range(64):
        top = output.logits[0, -1].topk(2).values
        greedy.append(int(output.logits[0, -1].argmax()))
        margins.append(round(float(top[0] - top[1]), 6))
        output = model(torch.tensor([greedy[-1:]]), cache=output.past_key_values, use_cache=True)
    return {
        "ids": ids,
        "logits": {str(i): round(float(logits[i]), 5) for i in sampled},
        "greedy": greedy,
        "margins": margins,
    }


if __name__ == "__main__":
    main()
