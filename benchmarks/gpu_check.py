"""What the embedded engine does on a GPU: right logits, rates against floors, a five-step chain.

    benchmarks/gpu_check.sh        (which finds the wheels; see there)
    python benchmarks/gpu_check.py --device cpu --shape tiny     a dry run of the logic

The floors are measured on the same device: bytes per second by reading a large tensor, arithmetic
by a large product. A decode step must read all weights and the KV of its sequences; a prefill must
do 2 operations per weight and token. Nothing here has been measured on a GPU yet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_model import SHAPES, random_model
from phloem.programs.api.function import function
from phloem.programs.api.primitives import gen
from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.batch import ForwardBatch
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.plan import GIB

ROOT = Path(__file__).resolve().parent.parent
CHAIN = ((100, 3), (380, 80), (40, 20), (30, 64))
"""Prompt characters (about as many tokens) and output tokens of the steps that generate."""
Row = tuple[str, str, str]


def main() -> None:
    """Run every part that the time allows and print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--seconds", type=float, default=540.0, help="no part begins after this")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    dtype = torch.float32 if asked.device == "cpu" else torch.bfloat16
    rows: list[Row] = [("device", _name(asked.device), f"torch {torch.__version__}, {asked.shape}")]
    model: list[LoadedModel] = []

    def made() -> LoadedModel:
        if not model:
            model.append(random_model(asked.shape, asked.device, dtype))
        return model[0]

    parts: list[tuple[str, Callable[[], list[Row]]]] = [
        ("logits", lambda: logits(asked.shape, asked.device)),
        ("tests", lambda: tests(asked.device)),
        ("rates", lambda: rates(made(), asked.device)),
        ("chain", lambda: chain(made(), asked.device)),
    ]
    failed = False
    for name, part in parts:
        if time.monotonic() > until:
            rows.append((name, "left out", "no time was left"))
            continue
        began = time.monotonic()
        try:
            rows += part()
        except (RuntimeError, AssertionError, subprocess.TimeoutExpired) as error:
            failed = True
            rows.append((name, "FAILED", f"{type(error).__name__}: {str(error)[:300]}"))
        rows.append((f"{name}: took", f"{time.monotonic() - began:.1f} s", ""))
    report(rows)
    sys.exit(1 if failed else 0)


def report(rows: list[Row]) -> None:
    """The table, and JSON where $OUT names a folder."""
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    print()
    for first, second, third in rows:
        print(f"{first:<{widths[0]}}  {second:>{widths[1]}}  {third}".rstrip())
    if out := os.environ.get("OUT"):
        Path(out, "gpu_check.json").write_text(json.dumps(rows, indent=1))


def _name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def _sync(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(work: Callable[[], Any], device: str, rounds: int = 5) -> float:
    """The median seconds of `work`, after one round to warm up."""
    found = []
    for _ in range(rounds + 1):
        _sync(device)
        began = time.perf_counter()
        work()
        _sync(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


# Logits ------------------------------------------------------------------------------------------


def logits(shape: str, device: str) -> list[Row]:
    """Four layers of the shape on both devices: float32 must agree, bfloat16 is reported."""
    ids = torch.randint(3, 250, (96,), generator=torch.Generator().manual_seed(1))
    here = _prefill(random_model(shape, "cpu", torch.float32, layers=4), ids)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        there = _prefill(random_model(shape, device, dtype, layers=4), ids)
        scale = float(here.std())
        error = float((here - there).abs().max()) / scale
        same = float((here.argmax(-1) == there.argmax(-1)).float().mean())
        name = str(dtype).removeprefix("torch.")
        rows.append((f"logits {name}", f"{error:.1e}", f"max error / deviation; {same:.1%} argmax"))
        if dtype is torch.float32:
            assert error < 5e-3, f"float32 logits differ from the CPU's by {error} deviations"
    return rows


def _prefill(model: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """The logits of every row of a prompt, on the CPU."""
    decoder = model.decoder
    kv = decoder.new_kv(-(-len(ids) // 16) + 1, 16)
    return decoder.forward(_batch(decoder.device, [(ids, 0)], every=True), kv).cpu()


def _batch(
    device: torch.device, parts: list[tuple[torch.Tensor, int]], *, every: bool = False
) -> ForwardBatch:
    """Rows of sequences, each with the position it goes on from, on pages of its own."""
    longest = max(start + len(ids) for ids, start in parts)
    pages = -(-longest // 16)
    tables = torch.arange(len(parts) * pages).view(len(parts), pages)
    starts = [0]
    positions, slots = [], []
    for seq, (ids, start) in enumerate(parts):
        places = torch.arange(start, start + len(ids))
        positions.append(places)
        slots.append(tables[seq][places // 16] * 16 + places % 16)
        starts.append(starts[-1] + len(ids))
    wanted = list(range(starts[-1])) if every else [end - 1 for end in starts[1:]]
    return ForwardBatch(
        tokens=torch.cat([ids for ids, _ in parts]).to(device),
        positions=torch.cat(positions).to(device),
        slots=torch.cat(slots).to(device),
        query_starts=starts,
        context_lens=[start + len(ids) for ids, start in parts],
        pages=tables.to(device),
        logit_rows=torch.tensor(wanted, device=device),
    )


# Tests -------------------------------------------------------------------------------------------


def tests(device: str) -> list[Row]:
    """The tests marked `gpu`, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/runtime/test_gpu.py"]
    environment = os.environ | {"PHLOEM_GPU_TEST_DEVICE": device}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [("tests marked gpu", "passed", last)]


# Rates -------------------------------------------------------------------------------------------


def rates(model: LoadedModel, device: str) -> list[Row]:
    """Decode and prefill of the decoder alone, beside the floors of the device."""
    read, flops = floors(device, model.config.hidden_size)
    rows = [("memory read", f"{read / 1e9:.0f} GB/s", "measured"),
            ("matrix product", f"{flops / 1e12:.1f} TFLOP/s", "measured")]  # fmt: skip
    config, decoder = model.config, model.decoder
    size = torch.finfo(getattr(torch, model.dtype)).bits // 8
    weights = _parameters(model) * size
    context = 512
    for streams in (1, 8, 32, 128):
        parts = [(torch.tensor([5]), context)] * streams
        batch = _batch(decoder.device, parts)
        kv = decoder.new_kv(streams * (-(-(context + 1) // 16)), 16)
        eager = timed(lambda b=batch, k=kv: decoder.forward(b, k), device)
        floor = (weights + streams * context * decoder.kv_bytes_per_token()) / read
        note = f"{streams / eager:.0f} tok/s; floor {floor * 1e3:.2f} ms, x{eager / floor:.2f}"
        rows.append((f"decode step, {streams} streams", f"{eager * 1e3:.2f} ms", note))
        if device.startswith("cuda"):
            graph = _captured(lambda b=batch, k=kv: decoder.forward(b, k))
            spent = timed(graph.replay, device)
            rows.append((f"  as a CUDA graph, {streams}", f"{spent * 1e3:.2f} ms",
                         f"x{spent / floor:.2f} of the floor"))  # fmt: skip
    tokens = min(2048, config.max_positions)
    batch = _batch(decoder.device, [(torch.randint(3, 250, (tokens,)), 0)])
    kv = decoder.new_kv(-(-tokens // 16), 16)
    spent = timed(lambda: decoder.forward(batch, kv), device, rounds=3)
    head = config.vocab_size * config.hidden_size  # only the last token needs it
    floor = 2 * (_parameters(model) - 2 * head) * tokens / flops
    note = f"{tokens / spent:.0f} tok/s; floor {floor * 1e3:.1f} ms, x{spent / floor:.2f}"
    rows.append((f"prefill of {tokens}", f"{spent * 1e3:.1f} ms", note))
    return rows


def floors(device: str, width: int) -> tuple[float, float]:
    """Bytes per second of reads, and operations per second of products, of this device."""
    big = device.startswith("cuda")
    dtype = torch.bfloat16 if big else torch.float32
    values = torch.ones((4 * GIB if big else GIB // 4) // 4, device=device)
    read = values.numel() * 4 / timed(values.sum, device)
    del values
    size = 8192 if big else width
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return read, 2 * size**3 / timed(lambda: a @ b, device)


def _parameters(model: LoadedModel) -> int:
    c = model.config
    layer = 2 * c.hidden_size * c.head_dim * (c.heads + c.kv_heads)
    layer += 3 * c.hidden_size * c.mlp_size
    return c.layers * layer + 2 * c.vocab_size * c.hidden_size


def _captured(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """`work` as a graph: it must not wait for the device."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


# The chain ---------------------------------------------------------------------------------------


@function
def five_steps(s: Any, topic: str) -> None:
    """The support chain with fixed lengths: intent, passages, answer, verdict, closing."""
    for (size, tokens), name in zip(CHAIN, ("intent", "answer", "verdict", "closing"), strict=True):
        s += f"{topic} " + ("the answer of a handbook is in the text and " * 10)[:size]
        s += gen(name, max_tokens=tokens, temperature=0, ignore_eos=True)


def chain(model: LoadedModel, device: str) -> list[Row]:
    """First run and second run of one chain, then 8 and 32 at once; and plain streams."""
    backend = EmbeddedBackend(model, kv_tokens=65_536 if device == "cpu" else 262_144)
    rows: list[Row] = []
    for name in ("first", "second"):
        seconds, usage = _run(backend, ["a"])
        rows.append((f"chain, {name} run", f"{seconds:.2f} s", usage))
    for at_once in (8, 32):
        seconds, usage = _run(backend, [f"n{at_once}-{i}" for i in range(at_once)])
        rows.append((f"chain, {at_once} at once", f"{at_once / seconds:.2f} /s", usage))
    for streams in (1, 8, 32):
        speed = asyncio.run(_streams(backend, streams))
        rows.append((f"engine, {streams} streams", f"{speed:.0f} tok/s", "greedy, guesses on"))
    asyncio.run(backend.aclose())
    return rows


def _run(backend: EmbeddedBackend, topics: list[str]) -> tuple[float, str]:
    began = time.perf_counter()
    states = five_steps.run_batch([{"topic": topic} for topic in topics], backend=backend)
    seconds = time.perf_counter() - began
    for state in states:
        if state.error() is not None:
            raise AssertionError(f"a chain failed: {state.error()}")
    return seconds, f"{sum(tokens for _, tokens in CHAIN)} tokens generated by each"


async def _streams(backend: EmbeddedBackend, count: int) -> float:
    """Tokens per second of `count` streams of 64 tokens, prefill included."""

    async def one(number: int) -> int:
        session = await backend.open(f"s{number}")
        session.append([Text(f"{number} " + "a text of words " * 8, heal=False)])
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        *_, result = [item async for item in session.generate(params)]
        assert isinstance(result, StepResult)
        return result.usage.generated

    began = time.perf_counter()
    total = sum(await asyncio.gather(*map(one, range(count))))
    return total / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
