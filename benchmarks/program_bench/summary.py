"""From cells to numbers: medians over rounds, ratios, floors, and the goals they are held to.

What lives here: `summarise`. What does not: the goals (`goals.py`) and how it reads (`report.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .cells import Key
from .counting import invalid_outputs, merged_lengths, percentile, unequal_steps
from .engines import ENGINES
from .goals import goals
from .results import Cells, floor
from .shapes import SHAPES

__all__ = ["summarise"]

QUIET_CORES = 0.3
"""Cores in use by others above which a cell counts as measured under load."""
COUNTED = (
    "prompt", "reused", "prefilled", "generated", "forced", "drafted", "accepted", "scored",
    "calls", "tokenised",
)  # fmt: skip


def summarise(results: Mapping[Key, dict[str, Any]], absent: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the report shows, as plain values."""
    cells = Cells(results)
    present = [name for name in ENGINES if any(k.engine == name for k in results)]
    return {
        "engines": {name: _engine(cells, name, absent) for name in ENGINES},
        "cases": {name: _cases(cells, name) for name in present},
        "counts": {name: _counts(cells, name) for name in present},
        "differences": {name: odd for name in present if (odd := _differences(cells, name))},
        "floors": {name: least for name in present if (least := floor(cells, name)) is not None},
        "noisy": _noisy(results),
        "goals": goals(cells),
    }


def _engine(cells: Cells, name: str, absent: Mapping[str, str]) -> dict[str, Any]:
    engine = ENGINES[name]
    info: dict[str, Any] = next(
        (c["info"] for k, c in cells.results.items() if k.engine == name and "info" in c), {}
    )
    return {
        "title": engine.title,
        "weights": engine.weights,
        "held": info.get("weights"),
        "version": info.get("version"),
        "absent": "" if info else absent.get(name, "not run"),
    }


def _cases(cells: Cells, engine: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for shape, at_once in {(k.shape, k.at_once): None for k in sorted(cells.results)}:
        if shape == "calibration" or all(
            (k.engine, k.shape, k.at_once) != (engine, shape, at_once) for k in cells.results
        ):
            continue
        case: dict[str, Any] = {"rounds": len(cells.rounds(engine, shape, at_once))}
        if not case["rounds"]:
            case["why_not"] = cells.why_not(engine, shape, at_once)
        for part in ("first", "again"):
            parts = cells.parts(engine, shape, at_once, part)
            times = [t for p in parts for t in p.get("latencies", [])]
            if times:
                case[part] = {
                    "p50": statistics.median(times),
                    "p95": percentile(times, 0.95),
                    "programs": len(times),
                }
        case["per_s"] = cells.rate(engine, shape, at_once)
        found.setdefault(shape, {})[str(at_once)] = case
    return found


def _counts(cells: Cells, engine: str) -> dict[str, Any]:
    """Means per program, by shape, of one program at a time (else of 8 at once)."""
    found = {}
    for shape in SHAPES:
        parts = cells.parts(engine, shape, 1, "first") or cells.parts(engine, shape, 8, "first")
        programs = sum(len(part["outputs"]) for part in parts)
        if programs:
            found[shape] = {
                name: None
                if any(part[name] is None for part in parts)
                else sum(part[name] for part in parts) / programs
                for name in COUNTED
            }
    return found


def _all_parts(cells: Cells, engine: str, shape: str) -> list[dict[str, Any]]:
    return [
        part
        for at_once in (1, 8, 32)
        for cell in cells.rounds(engine, shape, at_once)
        for part in cell["parts"].values()
    ]


def _differences(cells: Cells, engine: str) -> dict[str, list[str]]:
    """Where an engine's work is not that of the others."""
    found = {}
    reference = "phloem-bf16"
    for shape, what in SHAPES.items():
        parts = _all_parts(cells, engine, shape)
        if not parts:
            continue
        outputs = [program for part in parts for program in part["outputs"]]
        wrong = invalid_outputs(what, outputs)
        notes = [f"{len(wrong)} invalid outputs, the first: {wrong[0]}"] if wrong else []
        expected = merged_lengths(_all_parts(cells, reference, shape))
        notes += unequal_steps(what, merged_lengths(parts), expected)
        if notes:
            found[shape] = notes
    return found


def _noisy(results: Mapping[Key, dict[str, Any]]) -> dict[str, float]:
    """Cells during which others used the machine, with the cores they took."""
    loads = {key.file.removesuffix(".json"): c.get("others_cores") for key, c in results.items()}
    return {name: load for name, load in loads.items() if load is not None and load > QUIET_CORES}
