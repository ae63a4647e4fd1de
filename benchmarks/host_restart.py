"""How long until a new engine process answers, after one has died or was given up.

    python benchmarks/host_restart.py [--rounds 5] [--streams 4] [--json]

The default model runs in a child process, as under `phloem serve`. While streams run it is killed
(SIGKILL), or leaks until its supervisor kills it. Every stream asks again at once. The time is from
the last token of any stream to the first one of a step that was asked again, in parts:

    noticing      until callers are told that the process has ended
    starting      until the new one runs
    importing     the engine, torch above all
    loading       the model
    answering     with the loaded model: the engine's start, the prompt, the first token

The goal is that no more than 3 s go by after the model is loaded again. How long a leak goes on
until the limit is reached is not part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from phloem.errors import EngineRestarted
from phloem.programs.protocol import SamplingParams, Text, TokenEvent
from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.runtime.host.supervisor import Limits
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.load import load_model
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.store import DEFAULT_MODEL

GOAL_S = 3.0
PARTS = ("noticing", "starting", "importing", "loading", "answering")
PHASES = ("importing the engine", "loading the model", "starting the engine")
"""What a child says when it begins the part after "starting", and so on."""

LEAK_BYTES = 32 << 20
SPARE_BYTES = 512 << 20
KV_TOKENS = 8192
LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
LOOK_S = 0.005


class LeakingDecoder:
    """The default model's decoder, which keeps memory with each pass while a file is there."""

    def __init__(self, decoder: Any, wanted: Path) -> None:
        self._decoder = decoder
        self._wanted = wanted
        self._kept: list[bytearray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """See `Decoder`."""
        if self._wanted.exists():
            self._kept.append(bytearray(b"x") * LEAK_BYTES)
        logits: torch.Tensor = self._decoder.forward(batch, kv)
        return logits


def leaking_model(wanted: str) -> LoadedModel:
    """Loaded by the child."""
    model = load_model(DEFAULT_MODEL)
    return dataclasses.replace(model, decoder=LeakingDecoder(model.decoder, Path(wanted)))


class Streams:
    """Long steps; each that is lost is asked for again, to its first token."""

    def __init__(self, backend: HostedBackend) -> None:
        self._backend = backend
        self.latest = 0.0
        """When the last token came of any step, before they were lost."""
        self.again = 0.0
        """When the first token came after that."""

    async def one(self, number: int) -> None:
        """A stream to its end."""
        session = await self._backend.open(str(number))
        session.append([Text(f"{number}. Once upon a time")])
        try:
            async for _ in session.generate(LONG):
                self.latest = time.perf_counter()
        except EngineRestarted:
            async for item in session.generate(LONG):
                if isinstance(item, TokenEvent) and item.tokens:
                    self.again = self.again or time.perf_counter()
                    break
        await session.close()


async def replacement(
    backend: HostedBackend, streams: int, end: Callable[[], None], mend: Callable[[], None]
) -> dict[str, float]:
    """Seconds of each part of one replacement. `end` brings the process to its end, and `mend`
    sees to it that the next one works."""
    running = Streams(backend)
    tasks = [asyncio.ensure_future(running.one(number)) for number in range(streams)]
    await _until(lambda: running.latest > 0)
    await asyncio.sleep(0.3)
    end()
    ends = [await _until(lambda: backend.state == "restarting")]
    mend()
    ends.append(await _until(lambda: backend.supervisor.phase == PHASES[0]))
    ends.append(await _until(lambda: backend.supervisor.phase in PHASES[1:]))
    ends.append(await _until(lambda: backend.supervisor.phase in PHASES[2:]))
    await asyncio.gather(*tasks)
    instants = [running.latest, *ends, running.again]
    return dict(zip(PARTS, (after - before for before, after in pairwise(instants)), strict=True))


async def _until(holds: Callable[[], bool]) -> float:
    """The instant at which something is seen to be so."""
    while not holds():  # noqa: ASYNC110 - it becomes so on another thread
        await asyncio.sleep(LOOK_S)
    return time.perf_counter()


async def measure(rounds: int, streams: int, wanted: Path) -> dict[str, list[dict[str, float]]]:
    """The parts of each replacement, by what it was for; the file `wanted` asks for a leak."""
    loader = Loader(f"{Path(__file__).stem}:leaking_model", {"wanted": str(wanted)})
    # Each process counts as one that lived long enough, or there would be pauses.
    limits = Limits(stable_s=0.0, spare_bytes=SPARE_BYTES)
    backend = HostedBackend(loader, limits=limits, kv_tokens=KV_TOKENS)
    await backend.start()

    def kill() -> None:
        assert backend.supervisor.pid is not None
        os.kill(backend.supervisor.pid, signal.SIGKILL)

    causes = {
        "killed": (kill, lambda: None),
        "leaked": (wanted.touch, lambda: wanted.unlink(missing_ok=True)),
    }
    found: dict[str, list[dict[str, float]]] = {cause: [] for cause in causes}
    for _ in range(rounds):
        for cause, (end, mend) in causes.items():
            found[cause].append(await replacement(backend, streams, end, mend))
    await backend.aclose()
    return found


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Median and maximum of each part, of all together, and of all but the loading."""
    report: dict[str, Any] = {}
    for cause, rounds in found.items():
        columns = {part: [each[part] for each in rounds] for part in PARTS}
        columns["in all"] = [sum(each.values()) for each in rounds]
        report[cause] = {
            name: {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}
            for name, values in columns.items()
        }
    slowest = max(each["answering"]["max"] for each in report.values())
    report["goal"] = {"answering, at most": GOAL_S, "met": slowest <= GOAL_S}
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(asked.rounds, asked.streams, Path(folder) / "leak"))
    report = summary(found)
    if asked.json:
        print(json.dumps(report))
        return
    goal = report.pop("goal")
    print(f"{'seconds, median (max)':22}", *(f"{cause:>18}" for cause in report))
    for part in (*PARTS, "in all"):
        shown = (
            f"{each[part]['median']:.2f} ({each[part]['max']:.2f})" for each in report.values()
        )
        print(f"{part:22}", *(f"{text:>18}" for text in shown))
    print(f"goal: answering within {GOAL_S} s: {'met' if goal['met'] else 'not met'}")


if __name__ == "__main__":
    main()
