"""What the executor adds to calling the engine directly, per transition.

A program of many steps runs on the scripted engine, compiled and opaque; the same steps are made
on the engine by hand. The difference, over the transitions, is the executor's own cost. The
limit in the plans is 200 µs.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import phloem as ph
from phloem.programs.protocol import SamplingParams, Text
from phloem.programs.testing import ScriptedBackend

STEPS = 200
REPEATS = 15


@ph.function
def program(s, steps):
    """An append and a step of one token, `steps` times."""
    for _ in range(steps):
        s += "text"
        s += ph.gen("x", max_tokens=1)


def engine() -> ScriptedBackend:
    """An engine that answers at once."""
    return ScriptedBackend(lambda *_: "o")


async def by_hand() -> float:
    """Seconds for the steps without a program."""
    backend = engine()
    session = await backend.open("s")
    started = time.perf_counter()
    for _ in range(STEPS):
        session.append([Text("text")])
        async for _ in session.generate(SamplingParams(max_tokens=1)):
            pass
    return time.perf_counter() - started


def through(run: ph.Program) -> float:
    """Seconds for the steps in a program."""
    backend = engine()
    started = time.perf_counter()
    run.run(STEPS, backend=backend)
    return time.perf_counter() - started


def main() -> None:
    """Print microseconds per transition, medians of `REPEATS`."""
    opaque = ph.function(opaque=True)(program.function)
    direct = statistics.median(asyncio.run(by_hand()) for _ in range(REPEATS))
    for name, run in (("compiled", program), ("opaque", opaque)):
        through(run)
        taken = statistics.median(through(run) for _ in range(REPEATS))
        transitions = 3 * STEPS if name == "compiled" else 2 * STEPS
        print(f"{name}: {(taken - direct) / transitions * 1e6:.0f} µs per transition")


if __name__ == "__main__":
    main()
