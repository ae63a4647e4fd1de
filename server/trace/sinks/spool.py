"""Documents on disk until Elasticsearch has them.

What lives here: `Spool`, segments of JSON lines in a folder, oldest first. What does not: sending
(`elastic.py`).

Every document goes through the spool: what was written survives a dead search server and a dead
recorder alike. A segment is deleted when all of it was accepted; one that was sent twice does no
harm, because documents have fixed ids.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import structlog

from phloem.errors import ConfigError
from phloem.server.trace.sinks.base import Document

__all__ = ["Spool"]

log = structlog.get_logger("phloem.trace")

SEGMENT = 4 * 2**20
AGE_S = 0.2
"""A segment is closed when it is this old, so that documents are sent soon."""
MAX_SIZE = 2 * 2**30


class Spool:
    """Segments in `folder`, at most `max_size` bytes of them: then the oldest is dropped, and
    its documents are counted in `dropped`."""

    def __init__(self, folder: Path, *, segment: int = SEGMENT, max_size: int = MAX_SIZE) -> None:
        self._folder, self._segment, self._max_size = folder, segment, max_size
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._opened = 0.0
        self._number = 0
        self.dropped = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the spool {folder} can't be made: {error}", hint="name another by --spool"
            ) from error
        self._hold()
        self._recover()

    def _hold(self) -> None:
        """One process writes here at a time; the lock goes with it, however it ends."""
        self._lock_file = (self._folder / "lock").open("ab")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise ConfigError(
                f"another proxy uses the spool {self._folder}", hint="name another by --spool"
            ) from None

    def _recover(self) -> None:
        """Segments that a recorder which died was still writing are whole now."""
        for left in self._folder.glob("*.open"):
            left.rename(left.with_suffix(".jsonl"))

    def add(self, documents: Sequence[Document]) -> None:
        """Write documents behind all others."""
        data = b"".join(
            json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            for one in documents
        )
        with self._lock:
            if self._file is None:
                self._number += 1
                name = f"{time.time_ns():020d}-{self._number:06d}.open"
                self._file = (self._folder / name).open("ab")
                self._opened = time.monotonic()
            self._file.write(data)
            self._file.flush()
            if self._file.tell() >= self._segment:
                self._close_segment()
        self._bound()

    def oldest(self, *, now: bool = False) -> Path | None:
        """The oldest whole segment, or None. A young one is left to grow, unless `now`."""
        with self._lock:
            old = time.monotonic() - self._opened > AGE_S
            if self._file is not None and (old or now):
                self._close_segment()
        found = sorted(self._folder.glob("*.jsonl"))
        return found[0] if found else None

    @staticmethod
    def read(segment: Path) -> list[Document]:
        """The documents of a segment; a last line that a crash cut is left out."""
        lines = segment.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1]]

    def close(self) -> None:
        """Keep what is written for the next time."""
        with self._lock:
            self._close_segment()
        self._lock_file.close()

    def _close_segment(self) -> None:
        if self._file is not None:
            path = Path(self._file.name)
            self._file.close()
            self._file = None
            path.rename(path.with_suffix(".jsonl"))

    def _bound(self) -> None:
        segments = sorted(self._folder.glob("*.jsonl"))
        sizes = {}
        for one in segments:
            try:
                sizes[one] = one.stat().st_size
            except FileNotFoundError:  # sent in this moment
                continue
        while sum(sizes.values()) > self._max_size and len(sizes) > 1:
            oldest = next(iter(sizes))
            self.dropped += len(self.read(oldest))
            oldest.unlink(missing_ok=True)
            del sizes[oldest]
            log.warning("spool_full", folder=str(self._folder), dropped=self.dropped)
