"""phloem and SGLang's own frontend in turn on one SGLang server, with what the server did for each.

    python benchmarks/sglang_passes.py [--shapes vote chain] [--at-once 8] [--rounds 3]

Needs PHLOEM_BENCH_SGLANG_PYTHON and PHLOEM_BENCH_MODEL. Each line counts the server's forward
passes, from its own log, and the CPU seconds of the server and of the client: they explain a
difference, and hold on a machine that others use too. Of the times only ratios are worth something.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from program_bench.engines import ENGINES, Engine, Places, Server  # noqa: E402
from program_bench.processes import Pool, cpu_seconds  # noqa: E402
from program_bench.shapes import SHAPES  # noqa: E402

_LIMIT_S = 600.0
_PREFILL = re.compile(r"Prefill batch.*?#new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+)")
_DECODE = re.compile(r"Decode batch.*?#running-req: (\d+)")
_COLUMNS = (
    "seconds", "server CPU s", "client CPU s", "passes", "prefill passes", "requests",
    "tokens prefilled", "decode passes", "decode rows",
)  # fmt: skip


def engines() -> list[Engine]:
    """Both, on a server that logs each pass."""
    server = ENGINES["sglang"].server
    assert server is not None
    logging = replace(server, command=_logging(server))
    return [replace(ENGINES[name], server=logging) for name in ("phloem-sglang", "sglang")]


def _logging(server: Server) -> Callable[[Places, int], list[str]]:
    return lambda places, port: [*server.command(places, port), "--decode-log-interval", "1"]


def passes(log: str) -> dict[str, float]:
    """What a part of the server's log tells of its passes."""
    prefills = [tuple(map(int, found)) for found in _PREFILL.findall(log)]
    rows = [int(found) for found in _DECODE.findall(log)]
    return {
        "passes": len(prefills) + len(rows),
        "prefill passes": len(prefills),
        "requests": sum(new for new, _, _ in prefills),
        "tokens prefilled": sum(tokens for _, tokens, _ in prefills),
        "decode passes": len(rows),
        "decode rows": sum(rows),
    }


def cell(
    pool: Pool, engine: Engine, shape: str, asked: argparse.Namespace, salt: int
) -> dict[str, float]:
    """One engine's turn."""
    count = asked.programs or max(asked.at_once, min(SHAPES[shape].single, 3))
    worker = pool.turn(engine)
    # What compiles at first use is compiled.
    warm = {"op": "cell", "shape": shape, "at_once": 1, "salt": -1, "count": 1, "limit_s": 0.0}
    if (engine.name, shape) not in _WARM:
        worker.ask(warm, _LIMIT_S)
        _WARM.add((engine.name, shape))
    pool.flush(engine)
    client, server = pool.running(engine)
    log = pool.server_log(engine)
    size, before = log.stat().st_size, (cpu_seconds([server]), cpu_seconds([client]))
    request = {
        **warm,
        "at_once": asked.at_once,
        "salt": 1000 * (salt + 1),
        "count": count,
        "limit_s": _LIMIT_S,
    }
    answer = worker.ask(request, _LIMIT_S)
    if "error" in answer:
        raise SystemExit(f"{engine.name}, {shape}: {answer['error']}")
    with log.open("rb") as file:
        file.seek(size)
        told = passes(file.read().decode(errors="replace"))
    return {
        "seconds": sum(part["seconds"] for part in answer["parts"].values()),
        "server CPU s": cpu_seconds([server]) - before[0],
        "client CPU s": cpu_seconds([client]) - before[1],
        **told,
    }


_WARM: set[tuple[str, str]] = set()


def main() -> None:
    """Measure, line by line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["vote"])
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument(
        "--programs", type=int, default=0, help="in a cell; default as many as at once"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="where logs stay")
    asked = parser.parse_args()
    logs = asked.logs or Path(tempfile.mkdtemp(prefix="sglang-passes-"))
    print("  ".join(f"{name:>16}" for name in ("shape", "client", *_COLUMNS)), flush=True)
    ratios: dict[str, list[float]] = {}
    with Pool(Places(os.environ), logs) as pool:
        for salt in range(asked.rounds):
            for shape in asked.shapes:
                found: dict[str, dict[str, Any]] = {}
                both = engines()
                for engine in both if salt % 2 else both[::-1]:
                    found[engine.name] = line = cell(pool, engine, shape, asked, salt)
                    shown = "  ".join(f"{line[name]:>16.5g}" for name in _COLUMNS)
                    print(f"{shape:>16}  {engine.name:>16}  {shown}", flush=True)
                ratio = found["sglang"]["seconds"] / found["phloem-sglang"]["seconds"]
                ratios.setdefault(shape, []).append(ratio)
    for shape, each in ratios.items():
        shown = ", ".join(f"{ratio:.3f}" for ratio in each)
        median = statistics.median(each)
        print(f"{shape}: programs/s of phloem over the frontend's {median:.3f} ({shown})")


if __name__ == "__main__":
    main()
