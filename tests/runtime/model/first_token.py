"""Run by test_load.py in a fresh process: load the model, which must be cached, and answer."""

import sys

import torch

from phloem.runtime.model import load
from phloem.runtime.model.batch import ForwardBatch


def main() -> None:
    """Print the token after "The capital of France is"."""
    torch.set_num_threads(1)
    load.convert = None  # a conversion would fail
    model = load.load_model(sys.argv[1], dtype="float32")
    ids = model.tokenizer.encode("The capital of France is")
    rows = torch.arange(len(ids))
    batch = ForwardBatch(
        torch.tensor(ids), rows, rows, [0, len(ids)], [len(ids)], rows[:1, None], rows[-1:]
    )
    logits = model.decoder.forward(batch, model.decoder.new_kv(1, 16))
    print(model.tokenizer.decode([int(logits[0].argmax())]))


if __name__ == "__main__":
    main()
