"""The goals of the project, and what was reached of each.

What lives here: `goals`. What does not: the numbers that they are judged by (`results.py`).
"""

from __future__ import annotations

from typing import Any

from .cells import Key
from .engines import ENGINES
from .results import Cells, floor, passes_by_rows
from .shapes import SHAPES

__all__ = ["goals"]


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def goals(cells: Cells) -> list[dict[str, Any]]:
    """Each goal with its bound, what was reached, and whether that is enough."""
    return [*_chain_goals(cells), *_batch_goals(cells), *_work_goals(cells), *_sglang_goals(cells)]


def _goal(what: str, bound: float, reached: float | None, *, least: bool = False) -> dict[str, Any]:
    met = None if reached is None else (reached >= bound if least else reached <= bound)
    return {"what": what, "bound": bound, "least": least, "reached": reached, "met": met}


def _chain_goals(cells: Cells) -> list[dict[str, Any]]:
    def chain(one: str, other: str, part: str = "first") -> float | None:
        return _ratio(cells.latency(one, "chain", part), cells.latency(other, "chain", part))

    found = []
    for engine in ("phloem-bf16", "phloem-int4"):
        least = floor(cells, engine) or {}
        for part in ("first", "again"):
            if part in least:
                over = cells.latency(engine, "chain", part)
                found.append(
                    _goal(
                        f"chain, {engine}, {part}: over the floor without guesses",
                        1.25,
                        _ratio(over, least[part]["floor_s"]),
                    )
                )
    found += [
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
        first = (floor(cells, engine) or {}).get("first")
        if first:
            found.append(_goal(f"chain, {engine}: share of time outside the decoder", 0.05,
                               first["own_share"]))  # fmt: skip
    return found


def _batch_goals(cells: Cells) -> list[dict[str, Any]]:
    found = [
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
    found.append(_goal(label, 1.0, ahead))
    return found


def _work_goals(cells: Cells) -> list[dict[str, Any]]:
    found = []
    for shape in ("few_shot", "tree", "vote"):
        for at_once in (1, 8, 32):
            parts = cells.parts("phloem-int4", shape, at_once, "first")
            needed = sum(part["optimal_prefill"] for part in parts)
            used = sum(part["prefilled"] for part in parts)
            if needed:
                found.append(
                    _goal(f"{shape}, {at_once} at once: prefilled / optimum", 1.04, used / needed)
                )
    for engine in ("phloem-int4", "phloem-bf16"):
        for shape in ("json", "rag"):
            saved, same = _saved(cells, engine, shape)
            if saved is not None:
                name = f"{shape}, {engine}"
                found.append(_goal(f"{name}: forward passes saved", 0.25, saved, least=True))
                found.append(_goal(f"{name}: texts the same without", 1.0, same, least=True))
    return found


def _saved(cells: Cells, engine: str, shape: str) -> tuple[float | None, float | None]:
    """Share of the passes that guesses and jumps save, and of the texts that stay the same."""
    passes = plain = 0.0
    pairs = same = 0
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
        passes += sum(passes_by_rows([mine]).values()) * count / len(mine["outputs"])
        plain += sum(passes_by_rows([theirs]).values()) * count / len(theirs["outputs"])
    if not pairs:
        return None, None
    return 1 - passes / plain, same / pairs


def _sglang_goals(cells: Cells) -> list[dict[str, Any]]:
    found = []
    for shape in SHAPES:
        for at_once in (1, 8, 32):
            ratio = _ratio(
                cells.rate("phloem-sglang", shape, at_once), cells.rate("sglang", shape, at_once)
            )
            if ratio is not None:
                found.append(
                    _goal(
                        f"{shape}, {at_once} at once: phloem over SGLang / SGLang's frontend",
                        1.0,
                        ratio,
                        least=True,
                    )
                )
    return found
