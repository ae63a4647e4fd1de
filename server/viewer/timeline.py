"""A trace as rows of a waterfall: steps, transitions and exchanges, branches as lanes.

What lives here: which rows there are, in which order, and where their bars lie. What does not:
what a row opens (`panels.py`) and how it looks (templates/rows.html).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phloem.server.trace.record import Exchange, RunTrace
from phloem.server.trace.steps import Step
from phloem.server.viewer.graph import is_markup

__all__ = ["SCALE", "Bar", "Row", "rows_of", "ticks_of"]

SCALE = 1000
"""Width of the whole run, in the units of bars."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a row: a phase, its left edge and its width."""

    phase: str
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line. `opens` names its panel ("" for a lane), `depth` how far it is forked."""

    kind: str
    label: str
    opens: str = ""
    path: str = ""
    depth: int = 0
    line: int | None = None
    ms: float | None = None
    note: str = ""
    bars: tuple[Bar, ...] = ()
    failed: bool = False
    node: str | None = None
    at_ms: float = 0.0


def rows_of(run: RunTrace, steps: Sequence[Step]) -> tuple[Row, ...]:
    """All rows: a branch's in order, its children's where they split off."""
    total = length_ms(run, steps)
    nodes = {node["id"]: node for node in (run.graph or {}).get("nodes", ())}
    lanes: dict[str, list[Row]] = {"": []}
    begins: dict[str, float] = {}
    for number, step in enumerate(steps):
        lanes.setdefault(step.path, []).append(_step(number, step, total))
    for number, event in enumerate(run.events):
        if event["type"] == "forked":
            begins.update((child, 1000 * event["at"]) for child in event["children"])
        row = _transition(number, event, nodes.get(event["node"] or "", {}), total)
        if row is not None:
            lanes.setdefault(event["path"], []).append(row)
    for path in list(lanes):
        # A branch may have done nothing but split.
        while path := path.rpartition(".")[0]:
            lanes.setdefault(path, [])
    for path, rows in lanes.items():
        rows.sort(key=lambda row: row.at_ms)
        if path and rows:
            begins.setdefault(path, rows[0].at_ms)
    found = _nested("", lanes, begins, total)
    return (*found, *(_exchange(n, one, run, total) for n, one in enumerate(run.exchanges)))


def length_ms(run: RunTrace, steps: Sequence[Step]) -> float:
    """The time that the full width stands for: the last moment that is known."""
    moments = [run.duration_ms or 0.0, *(step.ended_ms or step.started_ms for step in steps)]
    moments += [1000 * run.events[-1]["at"]] if run.events else []
    moments += [
        1000 * (one.started - run.started) + one.timing.total_ms for one in run.exchanges
    ]  # fmt: skip
    return max(*moments, 0.001)


def ticks_of(total_ms: float) -> tuple[tuple[float, float], ...]:
    """Marks of the time axis as (place, milliseconds): four or more round numbers."""
    raw = total_ms / 5
    size = 10.0 ** (len(str(int(raw))) - 1) if raw >= 1 else 0.1
    step = next(size * one for one in (1, 2, 5, 10) if size * one >= raw)
    count = int(total_ms / step)
    return tuple((SCALE * at * step / total_ms, at * step) for at in range(count + 1))


def _nested(
    path: str, lanes: Mapping[str, list[Row]], begins: Mapping[str, float], total: float
) -> list[Row]:
    """A lane's rows, with a heading and the rows of each child put in where it begins."""
    children = [one for one in lanes if one and one != path and one.rpartition(".")[0] == path]
    children.sort(key=lambda one: (begins.get(one, 0.0), [int(part) for part in one.split(".")]))
    depth = path.count(".") + 1 if path else 0
    found: list[Row] = []
    for row in lanes[path]:
        while children and begins.get(children[0], 0.0) < row.at_ms:
            found += _lane(children.pop(0), lanes, begins, total)
        found.append(replace(row, depth=depth))
    for child in children:
        found += _lane(child, lanes, begins, total)
    return found


def _lane(
    path: str, lanes: Mapping[str, list[Row]], begins: Mapping[str, float], total: float
) -> list[Row]:
    rows = _nested(path, lanes, begins, total)
    bars = [bar for row in rows for bar in row.bars]
    start = min((bar.x for bar in bars), default=0.0)
    end = max((bar.x + bar.width for bar in bars), default=start)
    heading = Row(
        kind="lane",
        label=f"branch {path}",
        path=path,
        depth=path.count(".") + 1,
        bars=(Bar("lane", start, end - start),),
        ms=(end - start) * total / SCALE,
        failed=any(row.failed for row in rows),
    )
    return [heading, *rows]


_PHASES = (("queue", "queue_ms"), ("prefill", "prefill_ms"), ("decode", "decode_ms"))


def _step(number: int, step: Step, total: float) -> Row:
    timing = step.timing or {}
    took = step.duration_ms
    bars = []
    at = step.started_ms
    for phase, name in _PHASES:
        # Phases are the engine's, the step's own time is the program's: the latter bounds.
        length = min(float(timing.get(name) or 0.0), max(0.0, step.started_ms + (took or 0) - at))
        if length > 0:
            bars.append(_bar(phase, at, length, total))
            at += length
    end = step.started_ms + took if took is not None else total
    if end > at:
        bars.append(_bar("other" if bars else step.kind, at, end - at, total))
    return Row(
        kind=step.kind,
        label=step.name or step.kind,
        opens=f"steps/{number}",
        path=step.path,
        line=step.line,
        ms=took,
        note=f"{_note(step)} · replayed" if step.replayed else _note(step),
        bars=tuple(bars) or (_bar(step.kind, at, 0.0, total),),
        failed=step.error is not None,
        node=step.node,
        at_ms=step.started_ms,
    )


def _note(step: Step) -> str:
    if step.error is not None:
        return step.error[0]
    if step.kind == "retrieve":
        return _count(len(step.hits), "hit")
    if step.kind in {"select", "tool"}:
        return " ".join(str(step.value).split())[:60]
    if step.usage:
        return _count(step.usage.get("generated", 0), "token")
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _transition(
    number: int, event: Mapping[str, Any], node: Mapping[str, Any], total: float
) -> Row | None:
    """A row for what is no step but moves the run on; text is seen in the prompts of steps."""
    match event["type"]:
        case "ran" if not (node and is_markup(node)):
            source = str(node.get("source") or "").strip()
            kind, label, note = "python", source.split("\n", 1)[0] or "statements", ""
        case "branch_taken":
            kind, label = node.get("kind", "branch"), node.get("condition") or "condition"
            note = event["taken"]
        case "forked":
            kind, label, note = "fork", f"fork into {len(event['children'])}", ""
        case "joined":
            kind, label = "join", f"join {len(event['children'])}"
            note = f"{len(event['failed'])} failed" if event["failed"] else ""
        case _:
            return None
    at = 1000 * event["at"]
    return Row(
        kind=kind,
        label=label,
        opens=f"events/{number}",
        path=event["path"],
        line=event["line"],
        note=note,
        bars=(_bar("moment", at, 0.0, total),),
        failed=event["type"] == "joined" and bool(event["failed"]),
        node=event["node"],
        at_ms=at,
    )


def _exchange(number: int, one: Exchange, run: RunTrace, total: float) -> Row:
    start = 1000 * (one.started - run.started)
    first = one.timing.first_byte_ms
    length = one.timing.total_ms
    waited = length if first is None else min(first, length)
    bars = [_bar("queue", start, waited, total)]
    if length > waited:
        bars.append(_bar("decode", start + waited, length - waited, total))
    return Row(
        kind="http",
        label=f"{one.method} {one.path}",
        opens=f"exchanges/{number}",
        ms=length,
        note=str(one.status or "no answer"),
        bars=tuple(bars),
        failed=one.outcome == "failed",
        at_ms=start,
    )


def _bar(phase: str, start: float, length: float, total: float) -> Bar:
    """A bar that is never too thin to be seen."""
    x = min(SCALE * start / total, SCALE - 3.0)
    return Bar(phase, round(x, 2), round(max(SCALE * length / total, 3.0), 2))
