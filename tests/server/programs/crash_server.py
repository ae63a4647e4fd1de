"""A server process for crash tests: `crash_server.py PORT JOURNAL NOTES [CHANGED]`.

It runs on the scripted backend, which answers each prompt with a digest of it, slowly enough
to be killed in the middle. Its tool appends a line to NOTES. With CHANGED the program is another.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import phloem as ph
from phloem.programs.api.tools import tool
from phloem.programs.testing import ScriptedBackend
from phloem.server.http import serve
from phloem.server.settings import load_settings

NOTES = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()


@tool
def note(line: str) -> int:
    """Write a line down, durably."""
    with NOTES.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return len(line)


@ph.function
def steady(s: ph.State, number: int) -> list[str]:
    """Four steps, a note after each."""
    for step in range(4):
        s += f"{number}.{step}: " + ph.gen(f"x{step}", max_tokens=30, temperature=0)
        note(f"{number}.{step}")
    return [s[f"x{step}"] for step in range(4)]


@ph.function(name="steady")
def changed(s: ph.State, number: int) -> list[str]:
    """The same name, another program."""
    s += f"{number}: " + ph.gen("y", max_tokens=30, temperature=0)
    return [s["y"]]


def answer(prompt: str, *_: Any) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:30]


async def slowly() -> None:
    await asyncio.sleep(0.004)


if __name__ == "__main__":
    target = f"{__file__}:{'changed' if len(sys.argv) > 4 else 'steady'}"
    settings = load_settings(
        port=int(sys.argv[1]), journal=sys.argv[2], programs=(target,), log_level="warning",
        shutdown_s=2,
    )  # fmt: skip
    serve.main(settings, lambda: ScriptedBackend(answer, gate=slowly))
