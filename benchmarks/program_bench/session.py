"""Measuring: the plan's cells one after the other, on whatever engines are there.

What lives here: `measure` and how a cell's limits follow from what is known. What does not: the
plan (`cells.py`), processes (`processes.py`), and what the results say (`report.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cells import Key, Store, plan, salt_of
from .engines import Engine, Places
from .processes import Meter, Pool, StartFailure, TooSlow
from .shapes import SHAPES

__all__ = ["Options", "measure"]

CALIBRATION_S = 120.0


@dataclass(frozen=True)
class Options:
    """How much to measure.

    One program at a time goes on for about `cell_s` seconds, at least one program; several at once
    are given up after `hard_s`. No cell is begun after `budget_s`. `quick` is for tests: a program
    or two of everything.
    """

    rounds: int = 3
    everything: bool = False
    shapes: tuple[str, ...] = ()
    budget_s: float = float("inf")
    cell_s: float = 15.0
    hard_s: float = 120.0
    quick: bool = False


def measure(
    engines: Sequence[Engine], places: Places, store: Store, options: Options
) -> dict[str, str]:
    """Measure what is not in the store yet; returns why engines could not be run, by name."""
    deadline = time.monotonic() + options.budget_s
    absent = {engine.name: engine.missing(places) for engine in engines}
    absent = {name: reason for name, reason in absent.items() if reason}
    found = [engine for engine in engines if engine.name not in absent]
    by_name = {engine.name: engine for engine in found}
    with Pool(places, store.folder / "logs") as pool:
        cells = plan(found, options.rounds, everything=options.everything, shapes=options.shapes)
        for key in cells:
            if time.monotonic() > deadline:
                _say(f"the time is up before {key.file}")
                break
            if store.has(key) or key.engine in absent:
                continue
            engine = by_name[key.engine]
            reason = _hopeless(key, store, options)
            if reason:
                store.write(key, {"skipped": reason})
                continue
            try:
                _calibrate(pool, engine, key.round, store)
                result = _cell(pool, engine, key, options)
            except StartFailure as failure:
                absent[key.engine] = str(failure)
                pool.drop(engine)
                _say(f"{key.engine}: {failure}")
                continue
            store.write(key, result)
            _say(f"{key.file}: {_brief(result)}")
    return absent


def _cell(pool: Pool, engine: Engine, key: Key, options: Options) -> dict[str, Any]:
    shape = SHAPES[key.shape]
    count = shape.single if key.at_once == 1 else shape.batch or key.at_once
    if options.quick:
        count = min(count, 2 if key.at_once == 1 else key.at_once)
    request = {
        "op": "cell",
        "shape": key.shape,
        "at_once": key.at_once,
        "salt": salt_of(key),
        "count": count,
        "limit_s": options.cell_s,
    }
    worker = pool.turn(engine)
    pool.flush(engine)
    meter = Meter(pool.running(engine))
    try:
        result = worker.ask(request, options.hard_s)
    except TooSlow:
        pool.drop(engine)
        return {"over_s": options.hard_s, "asked": count}
    return {**result, "info": worker.info, "others_cores": meter.others()}


def _calibrate(pool: Pool, engine: Engine, number: int, store: Store) -> None:
    """Measure the embedded engine's decoder alone, once in each round."""
    if not engine.phloem or engine.server is not None:
        return
    key = Key(engine.name, "calibration", 1, number)
    if not store.has(key):
        meter = Meter([])
        worker = pool.turn(engine)
        result = worker.ask({"op": "calibrate"}, CALIBRATION_S)
        store.write(key, {**result, "info": worker.info, "others_cores": meter.others()})


def _hopeless(key: Key, store: Store, options: Options) -> str:
    """Why a cell would surely pass its hard limit, by what was measured already."""
    for other in range(key.round + 1):
        known = store.read(Key(key.engine, key.shape, key.at_once, other))
        if known and "over_s" in known:
            return f"took more than {known['over_s']:.0f} s in round {other + 1}"
    if key.at_once <= 8:
        return ""
    fewer = store.read(Key(key.engine, key.shape, 8, key.round)) or store.read(
        Key(key.engine, key.shape, 8, 0)
    )
    if fewer and "over_s" in fewer:
        return f"8 at once took more than {fewer['over_s']:.0f} s"
    if fewer and "parts" in fewer and not SHAPES[key.shape].batch:
        seconds = fewer["parts"]["first"]["seconds"]
        # Four times the programs take at least twice as long on every engine that was measured.
        if seconds * 2 > options.hard_s:
            return f"8 at once took {seconds:.0f} s"
    return ""


def _brief(result: dict[str, Any]) -> str:
    if "parts" not in result:
        return str(result.get("error") or f"more than {result.get('over_s')} s")
    part = result["parts"]["first"]
    return f"{len(part['outputs'])} programs in {part['seconds']:.1f} s"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
