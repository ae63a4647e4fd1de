"""Where an embedded index keeps its files.

What lives here: paths, settings and the swap of generations. What does not: what tantivy puts
into a generation.

    ROOT/NAME/current          the number of the generation that is searched
    ROOT/NAME/writer.lock      held while something is written
    ROOT/NAME/000001/          a generation: tantivy's files and
                 settings.json   dims and embedder of its vectors
                 vectors.f32     rows of float32, only ever appended to

A small file is replaced as a whole (written aside, synced, renamed), so whatever dies when, a
reader finds the old one or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from phloem.errors import IndexNotFound, RetrievalError
from phloem.retrieval.documents import check_index_name

__all__ = ["Layout", "Settings"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What a generation must remember. `dims` is None while it has no vectors."""

    dims: int | None = None
    embedder: str | None = None
    format: int = _FORMAT


class Layout:
    """The files of the index `name` under `root`."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = check_index_name(name)
        self.folder = root / name
        self.lock = self.folder / "writer.lock"
        self._current = self.folder / "current"

    def exists(self) -> bool:
        """Whether the index has a generation."""
        return self._current.exists()

    def current(self) -> Path:
        """The folder of the generation that is searched. Raises `IndexNotFound`."""
        try:
            return self.folder / self._current.read_text()
        except FileNotFoundError:
            raise IndexNotFound(
                f"no index {self.name!r} in {self.folder.parent}",
                hint=f"phloem index add PATH... --index {self.name}",
                index=self.name,
            ) from None

    def new_generation(self, settings: Settings) -> Path:
        """An empty folder for a generation that nobody searches yet. Needs the lock."""
        number = int(self._current.read_text()) + 1 if self.exists() else 1
        folder = self.folder / f"{number:06d}"
        if folder.exists():  # left by a process that died before the swap
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        write_settings(folder, settings)
        return folder

    def switch_to(self, generation: Path) -> None:
        """Search `generation` from now on and remove all others. Needs the lock."""
        _replace(self._current, generation.name)
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder != generation:
                shutil.rmtree(folder)

    def remove(self) -> None:
        """Delete the index: first as an index, then its files."""
        self._current.unlink()
        shutil.rmtree(self.folder)


def read_settings(generation: Path) -> Settings:
    """The settings of a generation. Raises `RetrievalError` for one of another format."""
    settings = Settings(**json.loads((generation / "settings.json").read_text()))
    if settings.format != _FORMAT:
        raise RetrievalError(
            f"{generation} has index format {settings.format}; this phloem reads {_FORMAT}",
            hint="rebuild the index with this version",
        )
    return settings


def write_settings(generation: Path, settings: Settings) -> None:
    """Replace the settings of a generation. Needs the lock."""
    _replace(generation / "settings.json", json.dumps(asdict(settings)))


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
