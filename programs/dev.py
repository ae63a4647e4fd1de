"""Running a program again and again while its file is edited.

What lives here: `DevSession`: load, run, compare, watch. What does not: the terminal
(`server/cli`). A run after an edit is answered from the record of the run before it up to the
first effect that differs, on each branch; the engine's cache keeps the KV of what is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from phloem.errors import ConfigError
from phloem.programs.api import start
from phloem.programs.api.function import Program
from phloem.programs.api.replay import again
from phloem.programs.api.state import ProgramState
from phloem.programs.executor import loop
from phloem.programs.executor.record import Entry, Record

__all__ = ["DevReport", "DevSession", "load_program"]

POLL_S = 0.3


@dataclass(frozen=True, slots=True)
class DevReport:
    """One run and what came of the edit before it.

    `kept` effects were answered from the run before, `anew` were done. `changed` is the first
    that was done anew (its node and line), None if nothing changed. `recomputed` counts the
    tokens that the engine computed or generated; `ms` is the whole run. `error` is what the
    program, or reading its file, raised.
    """

    state: ProgramState | None
    previous: ProgramState | None
    kept: int
    anew: int
    changed: tuple[str | None, int | None] | None
    recomputed: int
    ms: float
    error: BaseException | None = None


def load_program(path: str | Path, name: str) -> Program:
    """The program `name` of a Python file, its module executed afresh.

    Raises `ConfigError` for a missing file, a missing name, or a name that is no program.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no file {file}", hint="give the path of a Python file")
    module = _execute(file)
    found = getattr(module, name, None)
    if not isinstance(found, Program):
        programs = [key for key, value in vars(module).items() if isinstance(value, Program)]
        raise ConfigError(
            f"{file} has no program {name!r}",
            hint=f"it has: {', '.join(programs) or 'none; decorate a function with @function'}",
        )
    return found


def _execute(file: Path) -> ModuleType:
    identity = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]
    module = ModuleType(f"_phloem_dev_{identity}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    # Not by the import system: its byte-code cache takes two saves in a second for one.
    exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    return module


class DevSession:
    """A program in a file, its arguments, and its last run."""

    def __init__(
        self, path: str | Path, name: str, arguments: Mapping[str, Any], **settings: Any
    ) -> None:
        self._path, self._name = Path(path), name
        self._arguments, self._settings = dict(arguments), settings
        self._state: ProgramState | None = None

    def run(self) -> DevReport:
        """Read the file and run the program, on from the last run as far as it still holds."""
        started = time.monotonic()
        previous = self._state
        state: ProgramState | None = None
        error: BaseException | None = None
        try:
            program = load_program(self._path, self._name)
            state = self._start(program, previous)
            error = state.error()
        except Exception as raised:  # noqa: BLE001 - shown to the user, who edits on
            error = raised
        ms = (time.monotonic() - started) * 1000
        if state is None:
            return DevReport(None, previous, 0, 0, None, 0, ms, error)
        self._state = state
        return self._report(state, previous, ms, error)

    def _start(self, program: Program, previous: ProgramState | None) -> ProgramState:
        """The finished state, failed or not: a failed run is where the next edit goes on."""
        if previous is None:
            settings = {**self._settings, "record": True}
            started = start.prepare(program, (), {**self._arguments, **settings})
        else:
            record = Record.from_json(previous.record())
            started = again(program, record, "follow", self._settings, changed=True)
        with contextlib.suppress(Exception):  # the state holds it
            loop.wait(loop.submit(started.coroutine))
        return started.state

    def _report(
        self,
        state: ProgramState,
        previous: ProgramState | None,
        ms: float,
        error: BaseException | None,
    ) -> DevReport:
        old = Record.from_json(previous.record()) if previous else Record()
        new = Record.from_json(state.record())
        anew = [
            entry
            for path, entries in new.entries.items()
            for entry in entries[_shared(old.entries.get(path, []), entries) :]
        ]
        total = sum(map(len, new.entries.values()))
        first = min(anew, key=lambda entry: entry.order, default=None)
        return DevReport(
            state,
            previous,
            total - len(anew),
            len(anew),
            (first.node, first.line) if first else None,
            sum(_tokens(entry) for entry in anew),
            ms,
            error,
        )

    def watch(self, poll_s: float = POLL_S) -> Iterator[DevReport]:
        """A report now, and one after every change of the file, without end."""
        seen: int | None = None
        while True:
            stamp = self._path.stat().st_mtime_ns if self._path.exists() else 0
            if stamp != seen:
                seen = stamp
                yield self.run()
            time.sleep(poll_s)


def _shared(old: list[Entry], new: list[Entry]) -> int:
    """How many entries, from the first, are the same asking with the same outcome."""
    count = 0
    for before, after in zip(old, new, strict=False):
        if (before.request, before.outcome) != (after.request, after.outcome):
            break
        count += 1
    return count


def _tokens(entry: Entry) -> int:
    """Tokens that an entry's step computed or generated."""
    outcomes = entry.outcome if entry.kind == "gen" else [entry.outcome]
    if entry.kind not in {"gen", "select"}:
        return 0
    usages = [outcome["usage"] for outcome in outcomes]
    return sum(usage["prefilled"] + usage["generated"] + usage["scored"] for usage in usages)
