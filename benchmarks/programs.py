"""Whole programs on phloem and on other engines, on this machine: the project's benchmark.

    python benchmarks/programs.py [--all] [--budget-minutes 25] [--engines NAME ...]

Needs no other engine: what the environment does not name is listed as absent. What is compared, and
how: docs/benchmarks.md. Interrupted, it goes on where it was; `--fresh` forgets what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from program_bench.cells import Store  # noqa: E402
from program_bench.engines import CORES, ENGINES, Places  # noqa: E402
from program_bench.plot import svg  # noqa: E402
from program_bench.report import markdown, put_into  # noqa: E402
from program_bench.session import Options, measure  # noqa: E402
from program_bench.shapes import SHAPES  # noqa: E402
from program_bench.summary import summarise  # noqa: E402

from phloem.runtime.model.store import DEFAULT_MODEL, model_path  # noqa: E402


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every shape, not only the core set")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-minutes", type=float, help="begin no cell after this")
    parser.add_argument("--cell-seconds", type=float, default=15.0, help="of one at a time")
    parser.add_argument("--hard-seconds", type=float, default=120.0, help="give a cell up after")
    parser.add_argument("--quick", action="store_true", help="a program or two of everything")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--cells", type=Path, default=ROOT / "build" / "program-cells")
    parser.add_argument(
        "--report",
        choices=["print", "docs"],
        default="print",
        help="docs: into docs/performance.md",
    )
    parser.add_argument("--only-report", action="store_true", help="measure nothing more")
    return parser.parse_args()


def machine() -> str:
    """A sentence on where this was measured."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.processor()}, {CORES} threads, SmolLM2-135M-Instruct."


def main() -> None:
    """Measure, and report."""
    asked = arguments()
    # Whoever ends this process must not leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if asked.fresh and asked.cells.exists():
        shutil.rmtree(asked.cells)
    store = Store(asked.cells)
    places = Places(os.environ, str(model_path(DEFAULT_MODEL)))
    engines = [ENGINES[name] for name in asked.engines]
    options = Options(
        rounds=1 if asked.quick else asked.rounds,
        everything=asked.all or bool(asked.shapes),
        shapes=tuple(asked.shapes),
        budget_s=60 * asked.budget_minutes if asked.budget_minutes else float("inf"),
        cell_s=asked.cell_seconds,
        hard_s=asked.hard_seconds,
        quick=asked.quick,
    )
    absent = {engine.name: engine.missing(places) for engine in engines}
    if not asked.only_report:
        absent |= measure(engines, places, store, options)
    summary = summarise(store.all(), absent)
    if asked.report == "docs":
        folder = ROOT / "docs" / "benchmarks"
        folder.mkdir(exist_ok=True)
        (folder / "programs.json").write_text(json.dumps(summary, indent=1) + "\n")
        (folder / "programs.svg").write_text(svg(summary))
        text = markdown(summary, machine(), "benchmarks/programs.svg")
        put_into(ROOT / "docs" / "performance.md", text)
    else:
        print(markdown(summary, machine(), ""))


if __name__ == "__main__":
    main()
