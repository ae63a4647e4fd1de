"""A batch's results on disk, a JSON line each, so that a crash loses no finished row.

What lives here: `ResultsFile`. What does not: running rows (`batch.py`). A line holds the row's
index, a digest of program, arguments and sampling arguments, its text, messages, variables, their
meta data and value (as JSON for people: a pydantic value comes back as a dict), its error and its
usage. Rows that failed run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from phloem.errors import ConfigError
from phloem.programs.api import start
from phloem.programs.api.state import ProgramState
from phloem.programs.executor.record import digest
from phloem.programs.executor.values import show

__all__ = ["ResultsFile"]

_START = b'{"index": '
"""How every line begins."""
_FIELDS = {"index", "key", "text", "messages", "variables", "meta", "value", "error", "usage"}


class ResultsFile:
    """Results known from an earlier batch, and where new ones go."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._known: dict[int, dict[str, Any]] = {}
        self._written: set[int] = set()
        self._keys: dict[int, str] = {}
        self._program: str | None = None
        self._file: IO[str] | None = None

    def __enter__(self) -> ResultsFile:
        try:
            if self._path.exists():
                self._read()
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"results_file={str(self._path)!r} can't be used: {error}",
                hint="give a file that can be written, in a folder that exists",
            ) from error
        return self

    def _read(self) -> None:
        """Take in the rows that are there. Raises `ConfigError` for any other file, untouched."""
        whole = 0
        for line in self._path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                # A crash may have cut the last line; it is written over.
                if not _START.startswith(line[: len(_START)]):
                    raise self._foreign()
                break
            row = _row(line)
            if row is None:
                raise self._foreign()
            if row["error"] is None:
                self._known[row["index"]] = row
            whole += len(line)
        os.truncate(self._path, whole)

    def _foreign(self) -> ConfigError:
        return ConfigError(
            f"{self._path} holds something else than the results of a batch",
            hint="give results_file= a file of its own, which the batch makes",
        )

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
        """The finished state of a row that was done before by the same program with the same
        arguments. `kwargs` may hold settings: of these, the sampling
        arguments and the seed count."""
        told = {k: v for k, v in kwargs.items() if k in program.parameters or k not in start.APART}
        known = [program.name, self._identity(program), [show(arg) for arg in args], show(told)]
        key = digest(*known)
        self._keys[index] = key
        row = self._known.get(index)
        if row is None or row["key"] != key:
            return None
        self._written.add(index)
        return start.restored(program, told, row)

    def _identity(self, program: start.Startable) -> str:
        if self._program is None:
            self._program = program.identity()
        return self._program

    def write(self, index: int, state: ProgramState) -> None:
        """Keep a row's result, unless it came from the file."""
        key = self._keys.pop(index, None)
        if key is None or index in self._written or self._file is None:
            return
        error = state.error()
        row = {
            "index": index,
            "key": key,
            "text": state._branch.transcript.text(),
            "messages": state._branch.transcript.messages(),
            "variables": show(state.variables()),
            "meta": show(state._branch.meta),
            "value": show(state.value) if error is None else None,
            "error": show(f"{type(error).__name__}: {error}") if error is not None else None,
            "usage": show(state.usage),
        }
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of a results file, or None if it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.keys() >= _FIELDS else None
