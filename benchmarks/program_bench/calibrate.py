"""What the decoder takes on this machine now: the numbers that a floor is made of.

What lives here: `calibrate`. What does not: what follows from it (`counting.py`). It takes about
two seconds, and is done in each round beside the cells that it explains.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from phloem.runtime.model.batch import Decoder, ForwardBatch, KVStorage

__all__ = ["calibrate"]

CONTEXT = 700
"""Tokens before the measured rows: the middle of the five-step chain."""
STEP_ROWS = (1, 2, 4, 8)
PREFILL_ROWS = 512
PAGE = 16
REPEATS = 9
BANDWIDTH_BYTES = 1 << 28


def calibrate(decoder: Decoder) -> dict[str, Any]:
    """Seconds of a pass by rows, prefill in tokens per second, memory bandwidth in GB/s."""
    pages = 1 + -(-(CONTEXT + PREFILL_ROWS) // PAGE)
    kv = decoder.new_kv(pages, PAGE)
    for layer in kv.keys + kv.values:
        layer.copy_(torch.randn(layer[0].shape).expand(layer.shape))
    steps = {rows: _seconds(decoder, _batch(CONTEXT, rows), kv, REPEATS) for rows in STEP_ROWS}
    prefill = _seconds(decoder, _batch(0, PREFILL_ROWS), kv, 3)
    return {
        "step_s": {str(rows): seconds for rows, seconds in steps.items()},
        "prefill_per_s": PREFILL_ROWS / prefill,
        "bandwidth_gb_s": _bandwidth(),
        "threads": torch.get_num_threads(),
    }


def _batch(cached: int, rows: int) -> ForwardBatch:
    table = 1 + torch.arange(-(-(cached + rows) // PAGE)).view(1, -1)
    positions = torch.arange(cached, cached + rows)
    wanted = torch.arange(rows) if rows <= max(STEP_ROWS) else torch.tensor([rows - 1])
    return ForwardBatch(
        tokens=torch.randint(0, 49_000, (rows,), generator=torch.Generator().manual_seed(0)),
        positions=positions,
        slots=table[0, positions // PAGE] * PAGE + positions % PAGE,
        query_starts=[0, rows],
        context_lens=[cached + rows],
        pages=table,
        logit_rows=wanted,
    )


def _seconds(decoder: Decoder, batch: ForwardBatch, kv: KVStorage, repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        decoder.forward(batch, kv)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _bandwidth() -> float:
    """GB/s that a sum over far more memory than the caches hold reads at."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - began)
    return BANDWIDTH_BYTES / best / 1e9
