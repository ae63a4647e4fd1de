"""What several rounds of a cell come to, and what the decoder alone would have taken.

What lives here: `Cells`, `floor` and `passes_by_rows`. What does not: tables (`summary.py`) and
goals (`goals.py`). A number that a cell is missing for is None, never a guess.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from .cells import Key
from .counting import Calibration, expected_seconds, floor_seconds

__all__ = ["Cells", "floor", "passes_by_rows"]


class Cells:
    """The results by key."""

    def __init__(self, results: Mapping[Key, dict[str, Any]]) -> None:
        self.results = results

    def rounds(self, engine: str, shape: str, at_once: int) -> list[dict[str, Any]]:
        """The measured rounds of a case."""
        case = (engine, shape, at_once)
        keys = [k for k in self.results if (k.engine, k.shape, k.at_once) == case]
        return [self.results[k] for k in sorted(keys) if "parts" in self.results[k]]

    def parts(self, engine: str, shape: str, at_once: int, part: str) -> list[dict[str, Any]]:
        """One pass ("first" or "again") of each round."""
        found = (cell["parts"].get(part) for cell in self.rounds(engine, shape, at_once))
        return [part for part in found if part is not None]

    def latency(self, engine: str, shape: str, part: str = "first") -> float | None:
        """Median seconds of one program at a time, over all rounds."""
        times = [t for p in self.parts(engine, shape, 1, part) for t in p["latencies"]]
        return statistics.median(times) if times else None

    def rate(self, engine: str, shape: str, at_once: int) -> float | None:
        """Programs per second, the median of the rounds."""
        rates = [
            len(p["outputs"]) / p["seconds"] for p in self.parts(engine, shape, at_once, "first")
        ]
        return statistics.median(rates) if rates else None

    def why_not(self, engine: str, shape: str, at_once: int) -> str:
        """Why a case has no number."""
        for key, cell in sorted(self.results.items()):
            if (key.engine, key.shape, key.at_once) == (engine, shape, at_once):
                if "over_s" in cell:
                    return f"over {cell['over_s']:.0f} s"
                if "skipped" in cell:
                    return f"not run: {cell['skipped']}"
                if "error" in cell:
                    return f"failed: {cell['error']}"
        return "not run"

    def calibration(self, engine: str) -> Calibration | None:
        """The decoder's own speed, medians of the rounds."""
        name = engine.removesuffix("-plain")
        cells = [
            cell
            for key, cell in self.results.items()
            if key.shape == "calibration" and key.engine in {name, f"{name}-plain"}
        ]
        if not cells:
            return None
        steps = {
            int(rows): statistics.median(cell["step_s"][rows] for cell in cells)
            for rows in cells[0]["step_s"]
        }
        return Calibration(steps, statistics.median(cell["prefill_per_s"] for cell in cells))


def floor(cells: Cells, engine: str) -> dict[str, Any] | None:
    """What the chain takes at least, from the decoder's own speed, and the runtime's own cost."""
    calibration = cells.calibration(engine)
    if calibration is None:
        return None
    found: dict[str, Any] = {
        "step_ms": {rows: 1e3 * s for rows, s in calibration.step_s.items()},
        "prefill_per_s": calibration.prefill_per_s,
    }
    for name in ("first", "again"):
        parts = cells.parts(engine, "chain", 1, name)
        programs = sum(len(part["outputs"]) for part in parts)
        if not programs:
            continue
        seconds = sum(part["seconds"] for part in parts)
        passes = passes_by_rows(parts)
        prefilled = sum(part["prefilled"] for part in parts) / programs
        generated = sum(part["generated"] for part in parts) / programs
        expected = expected_seconds(calibration, passes)
        found[name] = {
            "seconds": seconds / programs,
            "floor_s": floor_seconds(calibration, round(prefilled), round(generated)),
            "passes": sum(passes.values()) / programs,
            "own_share": 1 - sum(part["decoder_s"] for part in parts) / seconds,
            "own_share_calibrated": 1 - expected / seconds,
        }
    return found


def passes_by_rows(parts: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """How many forward passes had how many rows, of several cells together."""
    passes: dict[int, int] = {}
    for part in parts:
        for rows, count in part["passes"].items():
            passes[int(rows)] = passes.get(int(rows), 0) + count
    return passes
