"""Traces in JSONL files: one document a line, a new file when one is full.

What lives here: `JsonlSink`. What does not: reading (`readers/jsonl.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import structlog

from phloem.errors import ConfigError
from phloem.server.trace.sinks.base import Document, Sink

__all__ = ["JsonlSink"]

log = structlog.get_logger("phloem.trace")

MAX_FILE = 64 * 2**20
MAX_FILES = 64


class JsonlSink(Sink):
    """Writes into `folder`, files of about `max_file` bytes; of more than `max_files` the oldest
    is deleted. Raises `ConfigError` if the folder can't be made."""

    def __init__(
        self, folder: Path, *, max_file: int = MAX_FILE, max_files: int = MAX_FILES
    ) -> None:
        self.name = f"jsonl:{folder}"
        super().__init__()
        self._folder, self._max_file, self._max_files = folder, max_file, max_files
        self._file: IO[bytes] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the folder {folder} can't be made: {error}") from error

    def keep(self, batch: Sequence[Document]) -> None:
        """Write a line each."""
        for document in batch:
            line = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
            file = self._current()
            file.write(line.encode())
        self._current().flush()

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _current(self) -> IO[bytes]:
        if self._file is not None and self._file.tell() < self._max_file:
            return self._file
        self.finish()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        # Names sort by age; a second file within the same second gets a higher number.
        taken = len(list(self._folder.glob(f"traces-{stamp}-*.jsonl")))
        path = self._folder / f"traces-{stamp}-{time.time_ns() % 10**9:09d}-{taken:03d}.jsonl"
        self._file = path.open("ab")
        self._rotate()
        return self._file

    def _rotate(self) -> None:
        files = sorted(self._folder.glob("traces-*.jsonl"))
        for old in files[: -self._max_files]:
            old.unlink(missing_ok=True)
            log.info("trace_file_deleted", file=old.name, kept=self._max_files)
