"""Whether the event loop that all runs share still turns.

What lives here: `Pulse`, which asks it again and again. What does not: the loop
(`programs/executor/loop.py`) and what probes say (`health.py`).

A program's own statements run on that loop: one that computes, sleeps or loops for ever holds up
all others, and every request that needs the engine. It can't be taken off; but probes and the log
can say so, and whoever watches the process can start it anew.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback

import structlog

from phloem.server.http import bridge

__all__ = ["Pulse"]

log = structlog.get_logger("phloem.server")

BEAT_S = 0.5
HELD_S = 2.0
"""Silence that makes a server not ready."""
FRAMES = 5


class Pulse:
    """Used on the web server's loop. After `patience_s` of silence the log tells who is at it, and
    `lost` is True until it is over."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._asked: float | None = None

    @property
    def held(self) -> bool:
        """Whether requests that need the loop would wait for a program."""
        return self._silent_s > HELD_S or self.lost

    @property
    def lost(self) -> bool:
        """Whether it has been held for so long that it may be for ever."""
        return self._silent_s > self._patience_s

    @property
    def _silent_s(self) -> float:
        return 0.0 if self._asked is None else time.monotonic() - self._asked

    async def watch(self) -> None:
        """Ask for ever."""
        while True:
            self._asked = time.monotonic()
            await self._beat()
            self._asked = None
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        beat = asyncio.ensure_future(bridge.call(_nothing()))
        told = False
        while not (await asyncio.wait({beat}, timeout=BEAT_S))[0]:
            if self.lost and not told:
                told = True
                log.error("runs_held_up", seconds=round(self._silent_s, 1), at=_stack())
        if told:
            log.warning("runs_go_on", seconds=round(self._silent_s, 1))


async def _nothing() -> None:
    """Done as soon as the loop comes by."""


def _stack() -> list[str]:
    """Where the loop's thread is: file, line and function, innermost last."""
    frames = sys._current_frames()
    held = [frames[one.ident] for one in threading.enumerate()
            if one.name == "phloem" and one.ident in frames]  # fmt: skip
    return [
        f"{at.filename}:{at.lineno} {at.name}"
        for frame in held
        for at in traceback.extract_stack(frame)[-FRAMES:]
    ]
