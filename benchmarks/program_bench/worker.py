"""The process that runs programs on one engine, told by lines of JSON on its standard input.

    python worker.py RUNNER [ARGUMENT ...]

What lives here: the loop and the timing. What does not: engines (`engine_*.py`). Runs in the
environment of its engine, where neither phloem nor this package is installed: it makes the package
known under its own name, without putting any folder on the path of imports.

Requests: {"op": "cell", "shape", "at_once", "salt", "count", "limit_s"}, {"op": "calibrate"},
{"op": "generate", "prompts", "tokens"}. Each is answered by one line, {"error": ...} if it failed.
The first line tells of the engine.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PACKAGE = __package__ or "program_bench"


def _load_package() -> None:
    here = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]


def module(name: str) -> Any:
    """A module of this package."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def make(name: str, arguments: list[str]) -> Any:
    """The runner of an engine."""
    if name == "phloem":
        dtype, model, *flags = arguments
        settings = {"drafts": False, "jump_forward": False} if "plain" in flags else {}
        # The other engines take their KV's memory at the start too.
        return module("engine_phloem").embedded(model, dtype, prefault=True, **settings)
    if name == "phloem-sglang":
        return module("engine_phloem").over_sglang(*arguments)
    if name == "sglang":
        return module("engine_sglang").SGLangRunner(*arguments)
    if name in {"llama-cpp", "guidance", "outlines"}:
        classes = {"llama-cpp": "Llama", "guidance": "Guidance", "outlines": "Outlines"}
        return getattr(module("engine_local"), classes[name] + "Runner")(*arguments)
    url, version, weights = arguments
    http = module("engine_http")
    asks = {"vllm": http.vllm, "sglang-http": http.sglang_server, "llama-server": http.llama_server}
    return http.GlueRunner(url, asks[name], {"version": version, "weights": weights})


def run_cell(runner: Any, request: dict[str, Any], warm: set[str]) -> dict[str, Any]:
    """Time a cell's programs; `warm` are the shapes that this worker has run before."""
    shapes = module("shapes")
    name, at_once = request["shape"], request["at_once"]
    if name not in warm:
        # Another salt: what compiles at first use is compiled, and nothing of the cell is computed.
        shared, rows = shapes.rows_of(name, request["salt"] + 1, 1)
        runner.prepare(name, shared)
        runner.one(rows[0])
        warm.add(name)
    shared, rows = shapes.rows_of(name, request["salt"], request["count"])
    runner.prepare(name, shared)
    runner.tally()
    if at_once > 1:
        parts = {"first": _together(runner, rows, at_once)}
    else:
        deadline = time.perf_counter() + request["limit_s"]
        parts = _in_turn(runner, rows, deadline, again=shapes.SHAPES[name].again)
    return {"asked": len(rows), "parts": parts}


def _together(runner: Any, rows: list[Any], at_once: int) -> dict[str, Any]:
    began = time.perf_counter()
    outputs = runner.many(rows, at_once)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "outputs": outputs, **runner.tally().to_json()}


def _in_turn(runner: Any, rows: list[Any], deadline: float, *, again: bool) -> dict[str, Any]:
    """One after the other, until the deadline; with `again` each twice in a row."""
    names = ("first", "again") if again else ("first",)
    parts: dict[str, Any] = {name: {"latencies": [], "outputs": []} for name in names}
    tallies = {name: module("tally").Tally() for name in names}
    for row in rows:
        for name, part in parts.items():
            began = time.perf_counter()
            part["outputs"].append(runner.one(row))
            part["latencies"].append(time.perf_counter() - began)
            if again:
                tallies[name].add(runner.tally())
        if time.perf_counter() > deadline:
            break
    if not again:
        tallies["first"] = runner.tally()
    for name, part in parts.items():
        part.update(seconds=sum(part["latencies"]), **tallies[name].to_json())
    return parts


def answer(runner: Any, request: dict[str, Any], warm: set[str]) -> dict[str, Any]:
    """The answer to one request."""
    if request["op"] == "cell":
        return run_cell(runner, request, warm)
    if request["op"] == "calibrate":
        found: dict[str, Any] = runner.calibrate()
        return found
    if request["op"] == "generate":
        began = time.perf_counter()
        generated, cached = runner.generate(request["prompts"], request["tokens"])
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "generated": generated, "cached": cached}
    raise ValueError(f"unknown op {request['op']!r}")


def main() -> None:
    """Answer until the input ends."""
    # Libraries write to standard output; answers must not be mixed with that.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _load_package()
    runner = make(sys.argv[1], sys.argv[2:])
    # As services do: no search for garbage goes through what the engine's libraries have made.
    gc.collect()
    gc.freeze()
    print(json.dumps(runner.info()), file=replies, flush=True)
    warm: set[str] = set()
    for line in sys.stdin:
        try:
            reply = answer(runner, json.loads(line), warm)
        except Exception as error:  # noqa: BLE001 - the harness reports it as the cell's result
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"[:1000]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
