"""`phloem bench`: how fast the engine is on this machine, in under a minute and offline.

What lives here: loading the model as asked, and printing. What does not: what is measured and
how (`runtime/benchmark.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from phloem.runtime.benchmark import Measurement, measure
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model import store
from phloem.runtime.model.load import load_model

__all__ = ["bench"]

KV_TOKENS = 16_384


def bench(model: str | None, dtype: str, threads: int | None, as_json: bool) -> None:
    """Measure `model` (by default the default one) held as `dtype`, with `threads` threads.

    Standard output gets the table, or with `as_json` one JSON object and nothing else; what is
    going on goes to standard error. Raises the errors of `load_model`.
    """
    began = time.perf_counter()
    if threads is not None:
        torch.set_num_threads(threads)
    _note("loading the model")
    loaded = load_model(model or store.DEFAULT_MODEL, dtype=dtype)
    # Guesses would make the figures depend on the text.
    backend = EmbeddedBackend(loaded, kv_tokens=KV_TOKENS, drafts=False)
    found = asyncio.run(_measure(backend))
    about = {
        "model": loaded.name,
        "dtype": loaded.dtype,
        "device": str(loaded.decoder.device),
        "decoder": type(loaded.decoder).__name__,
        "threads": torch.get_num_threads(),
    }
    seconds = round(time.perf_counter() - began, 1)
    if as_json:
        typer.echo(json.dumps({**about, **_numbers(found), "seconds": seconds}))
    else:
        _print(about, found, seconds)


async def _measure(backend: EmbeddedBackend) -> Measurement:
    try:
        return await measure(backend, _note)
    finally:
        await backend.aclose()


def _note(doing: str) -> None:
    typer.echo(doing, err=True)


def _numbers(found: Measurement) -> dict[str, Any]:
    runs = {str(run.streams): run for run in found.decoding}
    return {
        "prefill_tok_s": found.prefill_tok_s,
        "prefill_tokens": found.prefill_tokens,
        "decode_tok_s": {n: run.tok_s for n, run in runs.items()},
        "inter_token_ms": {n: asdict(run.inter_token_ms) for n, run in runs.items()},
        "first_token_ms": {n: asdict(run.first_token_ms) for n, run in runs.items()},
        "cache": asdict(found.cache),
    }


def _print(about: dict[str, Any], found: Measurement, seconds: float) -> None:
    console = Console(highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), soft_wrap=True)
    console.print(f"prefill of {found.prefill_tokens} tokens: {found.prefill_tok_s:,.0f} tok/s")
    table = Table("streams", "tok/s", title="decoding", box=None, title_justify="left")
    for name in ("between tokens", "to the first token"):
        table.add_column(f"{name}, ms p50 / p95 / p99", justify="right")
    for run in found.decoding:
        times = (run.inter_token_ms, run.first_token_ms)
        shown = [f"{t.p50:.1f} / {t.p95:.1f} / {t.p99:.1f}" for t in times]
        table.add_row(str(run.streams), f"{run.tok_s:,.0f}", *shown)
    console.print(table)
    cache = found.cache
    console.print(
        f"shared prefixes: {cache.reused} of {cache.prompt} prompt tokens reused, "
        f"{cache.reusable} could be"
    )
    console.print(f"{seconds} s in all")
