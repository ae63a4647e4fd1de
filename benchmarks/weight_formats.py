"""What each weight format costs and gives on this CPU: decode speed and perplexity.

Usage: python benchmarks/weight_formats.py [--tokens N] [--torch]

Loads the default model in every format, times decode steps at several batch sizes, and scores a
fixed text (the demo's handbook) a few rows at a time, so that the small-batch kernels are used.
Trust the ratios within one run.
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import torch

from phloem.runtime.model import load
from phloem.runtime.model.batch import Decoder, ForwardBatch
from phloem.runtime.model.convert import Held

FORMATS: tuple[Held, ...] = ("float32", "bfloat16", "int8", "int4")
SEQUENCES = (1, 4, 8, 32)
CONTEXT, STEPS, PAGE = 200, 8, 16
HANDBOOK = Path(__file__).resolve().parent.parent / "examples" / "handbook"


def batch(tokens: torch.Tensor, cached: int) -> ForwardBatch:
    """`tokens` [sequences, rows], after `cached` tokens each; every row's logits."""
    seqs, rows = tokens.shape
    pages = -(-(cached + rows) // PAGE)
    table = torch.arange(seqs * pages).view(seqs, pages)
    at = torch.arange(cached, cached + rows)
    return ForwardBatch(
        tokens=tokens.flatten(),
        positions=at.repeat(seqs),
        slots=(table[:, at // PAGE] * PAGE + at % PAGE).flatten(),
        query_starts=list(range(0, seqs * rows + 1, rows)),
        context_lens=[cached + rows] * seqs,
        pages=table,
        logit_rows=torch.arange(seqs * rows),
    )


def decode_rate(decoder: Decoder, seqs: int) -> float:
    """Tokens per second of `seqs` sequences that decode together after `CONTEXT` tokens."""
    step = batch(torch.randint(1000, 20000, (seqs, 1)), CONTEXT)
    kv = decoder.new_kv(seqs * step.pages.shape[1], PAGE)
    seconds = []
    for _ in range(STEPS + 2):
        start = time.perf_counter()
        decoder.forward(step, kv)
        seconds.append(time.perf_counter() - start)
    return seqs / statistics.median(seconds[2:])


def perplexity(decoder: Decoder, ids: list[int], rows: int = 4) -> float:
    """exp of the mean negative log-likelihood of `ids`, computed `rows` at a time."""
    kv = decoder.new_kv(-(-len(ids) // PAGE) + 1, PAGE)
    total = 0.0
    for at in range(0, len(ids) - 1, rows):
        inputs, targets = ids[at : at + rows], ids[at + 1 : at + 1 + rows]
        logits = decoder.forward(batch(torch.tensor([inputs]), at), kv)[: len(targets)]
        total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(targets))) * len(
            targets
        )
    return math.exp(total / (len(ids) - 1))


def main() -> None:
    """Print a row per format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=400, help="length of the scored text")
    parser.add_argument(
        "--torch", action="store_true", help="torch's decoder, not the compiled one"
    )
    arguments = parser.parse_args()
    count = arguments.tokens
    if arguments.torch:
        load.native_decoder = lambda *_: None
    text = "\n\n".join(path.read_text() for path in sorted(HANDBOOK.glob("*.md")))
    print(f"{torch.get_num_threads()} threads; tokens per second at {SEQUENCES}, perplexity")
    for held in FORMATS:
        model = load.load_model(device="cpu", dtype=held)
        ids = model.tokenizer.encode(text)[:count]
        rates = "  ".join(f"{decode_rate(model.decoder, n):6.0f}" for n in SEQUENCES)
        print(f"{held:9} {rates}   {perplexity(model.decoder, ids):.3f}", flush=True)


if __name__ == "__main__":
    main()
