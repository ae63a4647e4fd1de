"""What a pass of the engine costs beside the decoder, and the model's tokens per second.

    python benchmarks/engine.py [--model] [--json]
    python benchmarks/engine.py --peers [--rounds 3] [--json]

The first needs no model: a decoder that answers at once with random logits of 49,152 tokens
leaves only the engine's own work, given as CPU milliseconds of its thread per pass, by the number
of streams (medians), and by the number of steps that wait for four places (median, and the 99th
percentile). "cold": the decoder reads memory in each pass, as one with weights does, which drives
the engine's code and data out of the caches. `--model` adds the default model: tokens per second of
1, 8 and 32 greedy streams, guesses off.

The second compares the tokens per second of the default model with those of other engines, in
turn, and the ratios with their goals (`program_bench/speed.py`). docs/benchmarks.md says how
engines are found.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from program_bench.engines import ENGINES, Places
from program_bench.speed import CASES, PEERS, Speeds, measure

from phloem.programs.protocol import SamplingParams, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.generation import Generation
from phloem.runtime.engine.messages import Message
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.params import make_output_text
from phloem.runtime.engine.scheduler import step
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.tiny import tiny_model

LOGS = Path(__file__).resolve().parent.parent / "build" / "engine-peers"
VOCAB = 49_152
PASSES = 100
QUEUED_PASSES = 500
WEIGHTS = 1 << 23
"""Numbers that a decoder reads: 32 MB."""
STREAMS = (1, 8, 32)
QUEUED = (1, 10, 100, 1000)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1.0},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
}


class Instant:
    """A decoder that computes nothing, and reads `weights` numbers. `spent` is the CPU time it took
    all the same."""

    device = torch.device("cpu")
    max_positions = 4096
    vocab_size = VOCAB

    def __init__(self, weights: int = 0) -> None:
        self.spent = 0.0
        self._weights = torch.ones(weights)
        self._logits = 3 * torch.randn(max(STREAMS), VOCAB)

    def new_kv(self, pages: int, page_size: int) -> KVStorage:
        """Nothing is stored."""
        del pages
        return KVStorage([], [], page_size)

    def kv_bytes_per_token(self) -> int:
        """Nothing is stored."""
        return 0

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """Random logits, always the same."""
        del kv
        began = time.thread_time()
        self._weights.sum()
        logits = self._logits[: len(batch.logit_rows)].clone()
        self.spent += time.thread_time() - began
        return logits


def wide_vocabulary() -> Vocabulary:
    """A vocabulary as wide as a real one."""
    tiny = tiny_model(vocab=VOCAB)
    vocabulary = Vocabulary(tiny.tokenizer, VOCAB, tiny.eos_ids)
    vocabulary.token_bytes += [b"x"] * (VOCAB - vocabulary.size)
    vocabulary.size = VOCAB
    return vocabulary


def _ignore(message: Message) -> None:
    """Nobody reads."""
    del message


def _generation(vocabulary: Vocabulary, i: int, tokens: int, kind: str) -> Generation:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=i, **KINDS[kind])
    return Generation(
        Sequence("", [5 + i % 1000] * 200, 199),
        _ignore,
        params=params,
        vocabulary=vocabulary,
        noise=Noise(i, ""),
        text=make_output_text(params),
    )


def queued_cost(vocabulary: Vocabulary, queued: int) -> tuple[float, float]:
    """Milliseconds per pass outside the decoder while `queued` short steps wait, at all times, for
    four places that are given away again and again: median and 99th percentile."""
    decoder = Instant()
    state = EngineState(decoder, vocabulary, EngineConfig(kv_tokens=65_536, max_running=4))
    names = itertools.count()
    spent = []
    for _ in range(QUEUED_PASSES):
        while len(state.waiting) < queued:
            state.enqueue(_generation(vocabulary, next(names), 4, "greedy"))
        before, began = decoder.spent, time.thread_time()
        step(state)
        spent.append(time.thread_time() - began - (decoder.spent - before))
    ordered = sorted(spent[8:])
    return 1e3 * statistics.median(ordered), 1e3 * ordered[int(0.99 * len(ordered))]


def overhead(vocabulary: Vocabulary, streams: int, kind: str, weights: int = 0) -> float:
    """Milliseconds per pass outside the decoder, which reads `weights` numbers."""
    decoder = Instant(weights)
    state = EngineState(decoder, vocabulary, EngineConfig(kv_tokens=65_536))
    for i in range(streams):
        state.enqueue(_generation(vocabulary, i, PASSES + 4, kind))
    for _ in range(4):
        step(state)
    spent = []
    for _ in range(PASSES - 4):
        before, began = decoder.spent, time.thread_time()
        step(state)
        spent.append(time.thread_time() - began - (decoder.spent - before))
    return 1e3 * statistics.median(spent)


async def speed(tokens: int = 64) -> dict[str, float]:
    """Tokens per second of the default model, by number of streams."""
    backend = EmbeddedBackend(drafts=False, kv_tokens=16_384)
    await backend.start()

    async def stream(i: int) -> None:
        session = await backend.open(str(i))
        session.append([Text(f"{i}. Once upon a time")])
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        async for _ in session.generate(params):
            pass

    await stream(99)
    found = {}
    for streams in STREAMS:
        began = time.perf_counter()
        await asyncio.gather(*(stream(i) for i in range(streams)))
        found[str(streams)] = streams * tokens / (time.perf_counter() - began)
    await backend.aclose()
    return found


def peers(rounds: int, *, as_json: bool) -> None:
    """Compare with other engines, and print."""
    # Whoever ends this process must not leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    places = Places(os.environ, str(model_path(DEFAULT_MODEL)))
    speeds = measure([ENGINES[name] for name in PEERS], places, LOGS, rounds)
    print(json.dumps(speeds.to_json()) if as_json else table(speeds))


def table(speeds: Speeds) -> str:
    """For people."""
    found = speeds.to_json()
    lines = [f"{'tokens per second':18}" + "".join(f"{name:>19}" for name in PEERS)]
    for case in CASES:
        rates = found["tok_s"][case.name]
        shown = (f"{rates[name]:19,.0f}" if name in rates else f"{'-':>19}" for name in PEERS)
        lines.append(f"{case.name:18}" + "".join(shown))
    lines.append("")
    for goal in found["goals"]:
        reached, met = goal["reached"], {True: "met", False: "not met", None: ""}[goal["met"]]
        value = "not measured" if reached is None else f"{reached:.2f}"
        lines.append(f"{goal['what']:52} at least {goal['least']}: {value} {met}".rstrip())
    lines += [f"absent: {name}: {reason}" for name, reason in found["absent"].items()]
    if found["disturbed"]:
        lines.append(f"others used the machine during {found['disturbed']} measurements")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="store_true", help="measure the default model too")
    parser.add_argument("--peers", action="store_true", help="compare it with other engines")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    if asked.peers:
        peers(asked.rounds, as_json=asked.json)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is measured is too small to share, and the thread's own time
    vocabulary = wide_vocabulary()
    report: dict[str, dict[str, float]] = {
        f"ms_per_pass_{kind}": {str(n): overhead(vocabulary, n, kind) for n in STREAMS}
        for kind in KINDS
    }
    report["ms_per_pass_greedy_cold"] = {
        str(n): overhead(vocabulary, n, "greedy", WEIGHTS) for n in STREAMS
    }
    queued = {str(n): queued_cost(vocabulary, n) for n in QUEUED}
    report["ms_per_pass_queued"] = {n: median for n, (median, _) in queued.items()}
    report["ms_per_pass_queued_p99"] = {n: most for n, (_, most) in queued.items()}
    torch.set_num_threads(threads)
    if asked.model:
        report["decode_tok_s"] = asyncio.run(speed())
    if asked.json:
        print(json.dumps(report))
        return
    for name, values in report.items():
        print(f"{name:24}", "  ".join(f"{n}: {value:.3f}" for n, value in values.items()))


if __name__ == "__main__":
    main()
