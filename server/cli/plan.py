"""`phloem plan`: what a model needs on GPUs, as a table or JSON.

What lives here: reading sizes and printing. What does not: the arithmetic (`runtime/plan.py`).
"""

from __future__ import annotations

import dataclasses
import json
import re

import typer
from rich.console import Console
from rich.table import Table

from phloem.errors import ConfigError
from phloem.runtime.plan import GIB, Choice, Plan
from phloem.runtime.plan import plan as make_plan
from phloem.runtime.plan_shapes import read_shape

__all__ = ["bytes_of", "plan"]

_UNITS = {"": GIB, "gib": GIB, "gb": 10**9, "mib": 2**20, "mb": 10**6, "g": GIB}


def plan(
    model: str,
    memory: str,
    context: int,
    concurrency: int,
    weight_bits: float | None,
    kv_bits: float,
    as_json: bool,
) -> None:
    """Print the plan. Raises `ConfigError`, `ModelNotFound` and `ModelError`."""
    made = make_plan(
        read_shape(model),
        gpu=bytes_of(memory),
        context=context,
        concurrency=concurrency,
        weight_bits=weight_bits,
        kv_bits=kv_bits,
    )
    if as_json:
        best = None if made.best is None else made.best.tp
        typer.echo(json.dumps(dataclasses.asdict(made) | {"best_tp": best}, indent=2))
        return
    _print(made, Console(highlight=False, soft_wrap=True))


def bytes_of(text: str) -> int:
    """A size such as "80", "80GiB" or "141GB" in bytes; a bare number is GiB."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"{text!r} is no size", hint="write 80, 80GiB or 141GB")
    return int(float(found.group(1)) * unit)


def _print(made: Plan, console: Console) -> None:
    console.print(
        f"{made.model}: {made.parameters / 1e9:.3g} billion parameters, weights "
        f"{made.weights / GIB:.2f} GiB, KV {made.kv_per_token / 1024:g} KiB per token"
    )
    console.print(
        f"{made.concurrency} requests of {made.context} tokens: "
        f"{made.concurrency * made.context * made.kv_per_token / GIB:.2f} GiB of KV"
    )
    table = Table()
    for name in ("GPUs (--tp)", "weights each", "kept back each", "KV tokens", "batch",
                 "static share", "fits"):  # fmt: skip
        table.add_column(name, justify="right")
    for choice in made.choices:
        table.add_row(*_row(choice))
    console.print(table)
    best = made.best
    if best is None:
        console.print("None of these fits: use fewer bits, a shorter context, or a larger GPU.")
    else:
        console.print(f"Start it with --tp {best.tp} --mem-fraction-static "
                      f"{best.mem_fraction_static}")  # fmt: skip
    console.print("What is kept back for activations is an estimate; the server's log tells.")


def _row(choice: Choice) -> list[str]:
    return [
        str(choice.tp),
        f"{choice.weights / GIB:.2f} GiB",
        f"{choice.reserved / GIB:.2f} GiB",
        f"{choice.kv_tokens}",
        f"{choice.batch}",
        f"{choice.mem_fraction_static}",
        "yes" if choice.fits else "no",
    ]
