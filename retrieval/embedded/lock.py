"""One writer per index: a lock that says who holds it.

What lives here: the lock. What does not: what is written under it. The lock is the kernel's
(`flock`), so it is gone with its process however that ends; the note in the file only explains.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from phloem.errors import IndexLocked

__all__ = ["writer_lock"]

_POLL_S = 0.05


@contextmanager
def writer_lock(path: Path, *, index: str, wait: float) -> Iterator[None]:
    """Hold the lock file `path` while the block runs, waiting up to `wait` seconds for it.

    Raises `IndexLocked` naming the process that holds it.
    """
    deadline = time.monotonic() + wait
    while (handle := _acquired(path)) is None:
        if time.monotonic() >= deadline:
            raise _locked(path, index, wait)
        time.sleep(_POLL_S)
    try:
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": Path(sys.argv[0] or "python").name,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(note).encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquired(path: Path) -> int | None:
    """The open lock file, locked; None if another writer has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have dropped the index: then this is the lock of files that are gone.
        if path.stat().st_ino == os.fstat(handle).st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None


def _locked(path: Path, index: str, wait: float) -> IndexLocked:
    try:
        holder = json.loads(path.read_text())
    except (OSError, ValueError):  # its holder is just writing the note, or dropping the index
        holder = {}
    who = "process {pid} ({command}) on {host}, since {since}".format_map(
        {"pid": "?", "command": "?", "host": "?", "since": "?", **holder}
    )
    return IndexLocked(
        f"index {index!r} is being written by {who}; waited {wait:g} s",
        hint="wait for it to finish or end that process; readers are not affected",
        index=index,
        **holder,
    )
