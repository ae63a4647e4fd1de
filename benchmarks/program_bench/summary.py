"""From cells to numbers: medians over rounds, ratios, floors, and the goals they are held to.

What lives here: `summarise`. What does not: how it reads (`report.py`). A number that a cell is
missing for is None, never a guess.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from .cells import Key
from .counting import (
    Calibration,
    expected_seconds,
    floor_seconds,
    invalid_outputs,
    merged_lengths,
    percentile,
    unequal_steps,
)
from .engines import ENGINES
from .shapes import SHAPES

__all__ = ["Cells", "summarise"]

QUIET_CORES = 0.3
"""Cores in use by others above which a cell counts as measured under load."""
COUNTED = (
    "prompt", "reused", "prefilled", "generated", "forced", "drafted", "accepted", "scored",
    "calls", "tokenised",
)  # fmt: skip


class Cells:
    """The results, and what follows from several rounds of the same cell."""

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


def summarise(results: Mapping[Key, dict[str, Any]], absent: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the report shows, as plain values."""
    cells = Cells(results)
    present = [name for name in ENGINES if any(k.engine == name for k in results)]
    return {
        "engines": {name: _engine(cells, name, absent) for name in ENGINES},
        "cases": {name: _cases(cells, name) for name in present},
        "counts": {name: _counts(cells, name) for name in present},
        "differences": {name: found for name in present if (found := _differences(cells, name))},
        "floors": {name: found for name in present if (found := _floor(cells, name)) is not None},
        "noisy": _noisy(results),
        "goals": _goals(cells),
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


def _floor(cells: Cells, engine: str) -> dict[str, Any] | None:
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
        passes = _passes(parts)
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


def _passes(parts: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    passes: dict[int, int] = {}
    for part in parts:
        for rows, count in part["passes"].items():
            passes[int(rows)] = passes.get(int(rows), 0) + count
    return passes


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _goals(cells: Cells) -> list[dict[str, Any]]:
    """Each goal with its bound, what was reached, and whether that is enough."""
    return [*_chain_goals(cells), *_batch_goals(cells), *_work_goals(cells), *_sglang_goals(cells)]


def _goal(what: str, bound: float, reached: float | None, *, least: bool = False) -> dict[str, Any]:
    met = None if reached is None else (reached >= bound if least else reached <= bound)
    return {"what": what, "bound": bound, "least": least, "reached": reached, "met": met}


def _chain_goals(cells: Cells) -> list[dict[str, Any]]:
    def chain(one: str, other: str, part: str = "first") -> float | None:
        return _ratio(cells.latency(one, "chain", part), cells.latency(other, "chain", part))

    goals = []
    for engine in ("phloem-bf16", "phloem-int4"):
        floor = _floor(cells, engine) or {}
        for part in ("first", "again"):
            if part in floor:
                over = cells.latency(engine, "chain", part)
                goals.append(
                    _goal(
                        f"chain, {engine}, {part}: over the floor without guesses",
                        1.25,
                        _ratio(over, floor[part]["floor_s"]),
                    )
                )
    goals += [
        _goal(f"chain, {part}: {one} / {other}", bound, chain(one, other, part))
        for one, other, part, bound in (
            ("phloem-bf16", "vllm", "first", 0.45),
            ("phloem-bf16", "vllm", "again", 0.37),
            ("phloem-bf16", "sglang", "first", 0.2),
            ("phloem-int4", "guidance", "first", 0.6),
            ("phloem-int4", "llama-cpp", "first", 0.6),
            ("phloem-int4", "llama-server", "first", 0.6),
            ("phloem-int4", "vllm", "first", 0.25),
        )
    ]
    for engine in ("phloem-int4", "phloem-bf16", "phloem-int4-plain", "phloem-bf16-plain"):
        first = (_floor(cells, engine) or {}).get("first")
        if first:
            goals.append(_goal(f"chain, {engine}: share of time outside the decoder", 0.05,
                               first["own_share"]))  # fmt: skip
    return goals


def _batch_goals(cells: Cells) -> list[dict[str, Any]]:
    goals = [
        _goal(
            f"{at_once} chains at once: {engine} / vllm, programs per second",
            2.0,
            _ratio(cells.rate(engine, "chain", at_once), cells.rate("vllm", "chain", at_once)),
            least=True,
        )
        for at_once in (8, 32)
        for engine in ("phloem-bf16", "phloem-int4")
    ]
    ahead: float | None = None
    where = ""
    for shape in SHAPES:
        for at_once in (1, 8, 32):
            ours = [cells.rate(n, shape, at_once) for n in ("phloem-int4", "phloem-bf16")]
            theirs = {
                name: rate
                for name, engine in ENGINES.items()
                if not engine.phloem and (rate := cells.rate(name, shape, at_once)) is not None
            }
            best = max((rate for rate in ours if rate is not None), default=None)
            if best is None or not theirs:
                continue
            name = max(theirs, key=lambda n: theirs[n])
            if ahead is None or theirs[name] / best > ahead:
                ahead, where = theirs[name] / best, f"{name}, {shape}, {at_once} at once"
    label = f"the best other engine on any shape / phloem ({where})" if where else "best other"
    goals.append(_goal(label, 1.0, ahead))
    return goals


def _work_goals(cells: Cells) -> list[dict[str, Any]]:
    goals = []
    for shape in ("few_shot", "tree", "vote"):
        for at_once in (1, 8, 32):
            parts = cells.parts("phloem-int4", shape, at_once, "first")
            needed = sum(part["optimal_prefill"] for part in parts)
            used = sum(part["prefilled"] for part in parts)
            if needed:
                goals.append(
                    _goal(f"{shape}, {at_once} at once: prefilled / optimum", 1.04, used / needed)
                )
    for engine in ("phloem-int4", "phloem-bf16"):
        for shape in ("json", "rag"):
            saved, same = _saved(cells, engine, shape)
            if saved is not None:
                name = f"{shape}, {engine}"
                goals.append(_goal(f"{name}: forward passes saved", 0.25, saved, least=True))
                goals.append(_goal(f"{name}: texts the same without", 1.0, same, least=True))
    return goals


def _saved(cells: Cells, engine: str, shape: str) -> tuple[float | None, float | None]:
    """Share of the passes that guesses and jumps save, and of the texts that stay the same."""
    passes, plain, pairs, same = 0, 0, 0, 0
    for key, cell in cells.results.items():
        if (key.engine, key.shape, key.at_once) != (engine, shape, 1) or "parts" not in cell:
            continue
        other = cells.results.get(Key(f"{engine}-plain", shape, 1, key.round), {})
        if "parts" not in other:
            continue
        mine, theirs = cell["parts"]["first"], other["parts"]["first"]
        count = min(len(mine["outputs"]), len(theirs["outputs"]))
        same += sum(a == b for a, b in zip(mine["outputs"], theirs["outputs"], strict=False))
        pairs += count
        passes += sum(_passes([mine]).values()) * count / len(mine["outputs"])
        plain += sum(_passes([theirs]).values()) * count / len(theirs["outputs"])
    if not pairs:
        return None, None
    return 1 - passes / plain, same / pairs


def _sglang_goals(cells: Cells) -> list[dict[str, Any]]:
    goals = []
    for shape in SHAPES:
        for at_once in (1, 8, 32):
            ratio = _ratio(
                cells.rate("phloem-sglang", shape, at_once), cells.rate("sglang", shape, at_once)
            )
            if ratio is not None:
                goals.append(
                    _goal(
                        f"{shape}, {at_once} at once: phloem over SGLang / SGLang's frontend",
                        1.0,
                        ratio,
                        least=True,
                    )
                )
    return goals
