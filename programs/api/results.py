"""A batch's results on disk, a JSON line each, so that a crash loses no finished row.

What lives here: `ResultsFile`. What does not: running rows (`batch.py`). A line holds the row's
index, a digest of its arguments, its text, messages, variables and value (as JSON for people:
a pydantic value comes back as a dict), its error and its usage. Rows that failed run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from phloem.programs.api import start
from phloem.programs.api.state import ProgramState
from phloem.programs.executor.record import digest
from phloem.programs.executor.values import show

__all__ = ["ResultsFile"]


class ResultsFile:
    """Results known from an earlier batch, and where new ones go."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._known: dict[int, dict[str, Any]] = {}
        self._written: set[int] = set()
        self._keys: dict[int, str] = {}
        self._file: IO[str] | None = None

    def __enter__(self) -> ResultsFile:
        whole = 0
        if self._path.exists():
            for line in self._path.read_bytes().splitlines(keepends=True):
                # A crash may have cut the last line; it is written over.
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                row = json.loads(line)
                if row["error"] is None:
                    self._known[row["index"]] = row
            os.truncate(self._path, whole)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def find(
        self, index: int, program: start.Startable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ProgramState | None:
        """The finished state of a row that was done before with the same arguments."""
        key = digest(program.name, [show(arg) for arg in args], show(kwargs))
        self._keys[index] = key
        row = self._known.get(index)
        if row is None or row["key"] != key:
            return None
        self._written.add(index)
        return start.restored(program, kwargs, row)

    def write(self, index: int, state: ProgramState) -> None:
        """Keep a row's result, unless it came from the file."""
        key = self._keys.pop(index)
        if index in self._written or self._file is None:
            return
        error = state.error()
        row = {
            "index": index,
            "key": key,
            "text": state._branch.transcript.text(),
            "messages": state._branch.transcript.messages(),
            "variables": show(state.variables()),
            "value": show(state.value) if error is None else None,
            "error": f"{type(error).__name__}: {error}" if error is not None else None,
            "usage": show(state.usage),
        }
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()
