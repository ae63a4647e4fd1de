"""The copy of the traffic that goes to the recorder's process.

What lives here: `Tap`: frames collected for a moment and written together, never more of them
in memory than `MAX_WAITING`. What does not: the recorder.

A recorder that is slow, stuck or dead costs the traffic nothing: what does not fit is counted
and left out, whole connections' worth, until the next request begins.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import structlog

from phloem.server.trace.frames import Kind, encode

__all__ = ["Tap"]

log = structlog.get_logger("phloem.trace")

MAX_WAITING = 64 * 2**20
PAUSE_S = 0.005
"""How long frames are collected: one write for many."""


class Tap(asyncio.Protocol):
    """The relay's end of the socket to the recorder. `lost` counts requests that are missing,
    wholly or in part."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self.lost = 0
        self._max_waiting = max_waiting
        self._transport: asyncio.WriteTransport | None = None
        self._frames: list[bytes] = []
        self._size = 0
        self._lossy: set[int] = set()
        self._flushing: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The recorder is there."""
        # uvloop's transports have the methods but not the base class.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._lossy.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """The recorder is gone; what happens until another comes is lost."""
        self._transport = None
        self._frames.clear()
        self._size = 0
        if exc is not None:
            log.error("recorder_lost", reason=str(exc))

    def tell(self, kind: Kind, link: int, payload: bytes = b"") -> None:
        """Pass something on that happened now."""
        if link in self._lossy:
            if kind is Kind.HEAD and self._room():
                self._lossy.discard(link)
            else:
                self.lost += kind is Kind.HEAD
                if kind is Kind.CLOSED:
                    self._lossy.discard(link)
                return
        elif not self._room():
            self._lose(kind, link)
            return
        self._put(encode(kind, link, time.time(), payload))

    def _room(self) -> bool:
        waiting = self._size
        if self._transport is not None:
            waiting += self._transport.get_write_buffer_size()
        return self._transport is not None and waiting < self._max_waiting

    def _lose(self, kind: Kind, link: int) -> None:
        if self.lost == 0 or not self._lossy:
            log.warning("recorder_too_slow", lost=self.lost + 1)
        self.lost += 1
        if kind is not Kind.CLOSED:
            self._lossy.add(link)
        # Small, and needed: the recorder must know that bytes are missing.
        if self._transport is not None:
            self._put(encode(Kind.LOST, link, time.time()))

    def _put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)
        if self._flushing is None:
            self._flushing = self._loop.call_later(PAUSE_S, self.flush)

    def flush(self) -> None:
        """Hand over what was collected."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._transport is not None and self._frames:
            self._transport.write(b"".join(self._frames))
        self._frames.clear()
        self._size = 0

    def close(self) -> None:
        """Hand over the rest, and say that nothing follows."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
