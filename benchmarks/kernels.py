"""Decoder speed without the engine: native and torch kernels side by side on the default model.

    python benchmarks/kernels.py [--rounds 5] [--only native-int4 ...] [--json]

Cases are interleaved round by round and a median is taken, so that a neighbour's load hits all
alike: trust the ratios. "outside" is the share of a step that is neither a matrix product nor
attention: norms, rotation, packing, barriers, and the Python around the call. "attention / bytes"
is the time of attention over the time that reading the cached keys and values once takes, at the
speed at which the same threads sum a large array in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from phloem.runtime.model.batch import Decoder, ForwardBatch, KVStorage
from phloem.runtime.model.convert import Held, assemble, convert
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.weights import GgufWeights
from phloem.runtime.native.decoder import NativeDecoder, native_decoder

PAGE = 16
LARGE = 2**29
"""Bytes of the array that memory is measured with."""


@dataclass(frozen=True)
class Case:
    """`streams` sequences with `cached` tokens each take `rows` more."""

    name: str
    streams: int
    cached: int
    rows: int


CASES = [
    Case("1 stream", 1, 100, 1),
    Case("8 streams", 8, 100, 1),
    Case("32 streams", 32, 100, 1),
    Case("32 x 1,024", 32, 1023, 1),
    Case("prefill 1,000", 1, 0, 1000),
]


def batch_of(case: Case) -> tuple[ForwardBatch, int]:
    """The batch and the number of pages it needs; page 0 stays unused."""
    width = -(-(case.cached + case.rows) // PAGE)
    tables = 1 + torch.arange(case.streams * width).view(case.streams, width)
    positions = torch.arange(case.cached, case.cached + case.rows)
    slots = tables[:, positions // PAGE] * PAGE + positions % PAGE
    rows = case.streams * case.rows
    draw = torch.Generator().manual_seed(0)
    batch = ForwardBatch(
        tokens=torch.randint(0, 49_000, (rows,), generator=draw),
        positions=positions.repeat(case.streams),
        slots=slots.flatten(),
        query_starts=list(range(0, rows + 1, case.rows)),
        context_lens=[case.cached + case.rows] * case.streams,
        pages=tables,
        logit_rows=torch.arange(case.rows - 1, rows, case.rows),
    )
    return batch, 1 + case.streams * width


def makers() -> dict[str, Callable[[], Decoder]]:
    """How to make each decoder over the default model's weights."""
    weights = GgufWeights(GgufFile(model_path(DEFAULT_MODEL)))

    def torch_decoder(held: Held) -> Decoder:
        return assemble(weights.config, convert(weights, held), torch.device("cpu"))

    def native(held: Held) -> Decoder:
        decoder = native_decoder(weights.config, convert(weights, held))
        if decoder is None:
            raise SystemExit("there is no native decoder on this machine")
        return decoder

    return {
        "torch-bfloat16": lambda: torch_decoder("bfloat16"),
        "torch-int4": lambda: torch_decoder("int4"),
        "native-bfloat16": lambda: native("bfloat16"),
        "native-int4": lambda: native("int4"),
    }


def filled(decoder: Decoder, pages: int) -> KVStorage:
    """A pool of small random numbers: zeros would make attention's memory free."""
    kv = decoder.new_kv(pages, PAGE)
    for layer in kv.keys + kv.values:
        layer.copy_(torch.randn(layer[0].shape).expand(layer.shape))
    return kv


@dataclass(frozen=True)
class Pass:
    """Seconds of one pass, and of that in matrix products and in attention (None: not known)."""

    seconds: float
    matrices: float | None = None
    attention: float | None = None

    @property
    def outside(self) -> float | None:
        """The share that is in neither."""
        if self.matrices is None or self.attention is None:
            return None
        return 1 - (self.matrices + self.attention) / self.seconds


def measure(decoder: Decoder, batch: ForwardBatch, kv: KVStorage) -> Pass:
    """Time one pass."""
    before = decoder.seconds() if isinstance(decoder, NativeDecoder) else None
    start = time.perf_counter()
    decoder.forward(batch, kv)
    seconds = time.perf_counter() - start
    if before is None or not isinstance(decoder, NativeDecoder):
        return Pass(seconds)
    after = decoder.seconds()
    return Pass(seconds, *(after[part] - before[part] for part in ("matrices", "attention")))


def bandwidth(array: torch.Tensor) -> float:
    """Bytes a second at which torch's threads sum `array`, which no cache holds."""
    start = time.perf_counter()
    array.sum()
    return array.numel() * array.itemsize / (time.perf_counter() - start)


def median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def run(names: list[str], rounds: int) -> list[dict[str, object]]:
    """Measure every case with every decoder; one row a pair."""
    decoders = {name: make() for name, make in makers().items() if name in names}
    rows: list[dict[str, object]] = []
    large = torch.ones(LARGE // 8, dtype=torch.int64)
    for case in CASES:
        batch, pages = batch_of(case)
        pools = {name: filled(decoder, pages) for name, decoder in decoders.items()}
        results: dict[str, list[Pass]] = {name: [] for name in decoders}
        speeds = []
        for _ in range(rounds + 1):
            speeds.append(bandwidth(large))
            for name, decoder in decoders.items():
                results[name].append(measure(decoder, batch, pools[name]))
        for name, result in results.items():
            seconds = statistics.median(each.seconds for each in result[1:])
            attention = median(each.attention for each in result[1:])
            outside = median(each.outside for each in result[1:])
            cached = case.streams * (case.cached + 1) * decoders[name].kv_bytes_per_token()
            bytes_seconds = cached / statistics.median(speeds[1:])
            rows.append(
                {
                    "case": case.name,
                    "decoder": name,
                    "ms": round(seconds * 1e3, 2),
                    "best_ms": round(min(each.seconds for each in result[1:]) * 1e3, 2),
                    "tok_s": round(case.streams * case.rows / seconds, 1),
                    "outside": outside and round(outside, 3),
                    "attention_ms": attention and round(attention * 1e3, 2),
                    "bytes_ms": round(bytes_seconds * 1e3, 2) if case.rows == 1 else None,
                }
            )
    return rows


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(makers()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run(options.only, options.rounds)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{torch.get_num_threads()} threads; median of {options.rounds}, best in brackets")
    for row in rows:
        outside = "" if row["outside"] is None else f"  outside {row['outside']:.1%}"
        attention, wire = row["attention_ms"], row["bytes_ms"]
        if isinstance(attention, float) and isinstance(wire, float):
            outside += (
                f"  attention / bytes {attention:.2f} / {wire:.2f} ms = {attention / wire:.1f}"
            )
        print(
            f"{row['case']:>14}  {row['decoder']:<16}{row['ms']:>9} ms ({row['best_ms']:>8}) "
            f"{row['tok_s']:>8} tok/s{outside}"
        )


if __name__ == "__main__":
    main()
