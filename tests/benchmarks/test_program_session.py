"""How the benchmark measures: workers, cells that are kept, engines that hang or fail."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.program_bench.cells import Key, Store
from benchmarks.program_bench.engines import Engine, Places, Server
from benchmarks.program_bench.processes import Pool, StartFailure
from benchmarks.program_bench.session import Options, measure

WORKER = """
import json, sys, time
print(json.dumps({"version": "1", "weights": "w"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    with open(sys.argv[1], "a") as log:
        print(asked["shape"], asked["at_once"], asked["salt"], asked["count"], file=log)
    if asked["shape"] == "vote" and asked["at_once"] == 8:
        time.sleep(60)
    part = {"seconds": 1.0, "outputs": [[]], "latencies": [1.0]}
    print(json.dumps({"asked": 1, "parts": {"first": part}}), flush=True)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """An engine whose worker answers at once, but for votes of 8; it notes what it is asked."""
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path / "asked")]
    return Engine("fake", "a fake", "bf16", lambda places, url: command)


def test_cells_are_measured_once_and_a_slow_one_is_given_up(engine: Engine, tmp_path: Path) -> None:
    """A second run measures only what is missing; after a cell that hung, larger ones are left."""
    store, asked = Store(tmp_path / "cells"), tmp_path / "asked"
    options = Options(rounds=1, hard_s=2.5)
    assert measure([engine], Places({}), store, options) == {}
    cells = store.all()
    assert len(cells) == 9
    assert cells[Key("fake", "vote", 8, 0)] == {"over_s": 2.5, "asked": 8}
    assert "8 at once took more than" in cells[Key("fake", "vote", 32, 0)]["skipped"]
    assert len(asked.read_text().splitlines()) == 8
    (store.folder / Key("fake", "chain", 8, 0).file).unlink()
    measure([engine], Places({}), store, options)
    assert [line.split()[:2] for line in asked.read_text().splitlines()[8:]] == [["chain", "8"]]


def test_no_cell_begins_after_the_budget(engine: Engine, tmp_path: Path) -> None:
    """A budget that is used up leaves everything for the next run."""
    store = Store(tmp_path / "cells")
    measure([engine], Places({}), store, Options(budget_s=-1.0))
    assert store.all() == {}


def test_an_engine_that_does_not_start_is_reported_and_others_go_on(
    engine: Engine, tmp_path: Path
) -> None:
    """The reason is the end of its log."""
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    broken = dataclasses.replace(engine, name="broken", worker=lambda places, url: command)
    store = Store(tmp_path / "cells")
    absent = measure([broken, engine], Places({}), store, Options(rounds=1, shapes=("chain",)))
    assert absent == {"broken": "the worker ended: no such model"}
    assert {key.engine for key in store.all()} == {"fake"}


def test_a_server_that_ends_is_reported_and_nothing_is_left_behind(
    engine: Engine, tmp_path: Path
) -> None:
    """Its last words are the reason; the pool ends all it has started."""
    server = Server("s", lambda places, port: [sys.executable, "-c", "1/0"], "/health")
    served = dataclasses.replace(engine, name="served", server=server)
    with Pool(Places({}), tmp_path / "logs") as pool:
        worker = pool.turn(engine)
        with pytest.raises(StartFailure, match="division by zero"):
            pool.turn(served)
    with pytest.raises(ProcessLookupError):
        os.killpg(worker.pid, 0)


def test_only_the_engine_whose_turn_it_is_runs(engine: Engine, tmp_path: Path) -> None:
    """The other's processes are stopped until its own turn."""
    other = dataclasses.replace(engine, name="other")

    def stopped(pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def settles(pid: int, *, at: bool) -> bool:
        """A signal is taken when the process runs next."""
        return any(stopped(pid) == at or time.sleep(0.05) for _ in range(400))

    with Pool(Places({}), tmp_path / "logs") as pool:
        first = pool.turn(engine)
        second = pool.turn(other)
        assert settles(first.pid, at=True)
        assert settles(second.pid, at=False)
        assert pool.turn(engine) is first
        assert settles(first.pid, at=False)
        assert settles(second.pid, at=True)
