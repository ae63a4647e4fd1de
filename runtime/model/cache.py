"""Files derived from models, kept in the user's cache directory between runs.

What lives here: `cache_dir`, `content_hash` and `CacheEntry`, a folder of derived files that
are written atomically and checked when read. What does not: what is in them (`load.py`).
Nothing in it is precious: a file that is missing or damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from phloem.errors import ConfigError

__all__ = ["CacheEntry", "cache_dir", "content_hash"]

FORMAT_VERSION = 1
"""Raise it whenever the content of a derived file changes."""


def cache_dir() -> Path:
    """$PHLOEM_CACHE_DIR, else $XDG_CACHE_HOME/phloem, else ~/.cache/phloem."""
    own = os.environ.get("PHLOEM_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "phloem"


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and hashes of a folder's files.

    Hashing a large model takes seconds, so a file's hash is remembered with its size and time
    of change.
    """
    if path.is_file():
        return _remembered_hash(path)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.iterdir() if p.is_file()):
        digest.update(f"{file.name}\0{_remembered_hash(file)}\n".encode())
    return digest.hexdigest()


def _remembered_hash(path: Path) -> str:
    real = path.resolve()
    stat = real.stat()
    state = f"{real}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"
    memory = cache_dir() / "hashes" / hashlib.sha256(state.encode()).hexdigest()
    try:
        known = memory.read_text()
    except OSError:
        known = ""
    if len(known) != hashlib.sha256().digest_size * 2:
        known = file_hash(path)
        write_atomically(memory, lambda target: target.write_text(known))
    return known


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a temporary file, then move it to `path`: all or nothing.

    Raises `ConfigError` if the folder can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache directory can't be written: {error}",
            hint="free some space, or set PHLOEM_CACHE_DIR to a folder you may write to",
        ) from error


class CacheEntry:
    """The derived files of one source, e.g. the tokenizer and the weights of a GGUF file.

    Each file has its size and checksum beside it, so a damaged one is found and made again.
    """

    def __init__(self, source_hash: str) -> None:
        self.folder = cache_dir() / "converted" / f"{source_hash[:32]}-v{FORMAT_VERSION}"

    def file(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file `name`; if it is missing or damaged, `make` writes it first."""
        path = self.folder / name
        if not self._intact(path):
            write_atomically(path, make)
            seal = json.dumps({"size": path.stat().st_size, "sha256": file_hash(path)})
            write_atomically(self._seal(path), lambda target: target.write_text(seal))
        return path

    def _intact(self, path: Path) -> bool:
        try:
            seal = json.loads(self._seal(path).read_text())
            return bool(path.stat().st_size == seal["size"] and file_hash(path) == seal["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @staticmethod
    def _seal(path: Path) -> Path:
        return path.with_name(path.name + ".seal")
