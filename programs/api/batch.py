"""Many runs of one program, in order, with bounded memory.

What lives here: `run_batch` and its order. What does not: how a row runs (`rows.py`). Rows
may come from an iterator of any length: no more than a window of them is in memory. A failure
stays in its own row.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

from rich.progress import Progress

from phloem.errors import BatchFailed, CompileError
from phloem.programs.api import start
from phloem.programs.api.results import ResultsFile
from phloem.programs.api.rows import Inside, Job, Outside, Rows
from phloem.programs.api.state import ProgramState
from phloem.programs.executor.frame import current

__all__ = ["BatchOptions", "gather", "run_rows"]

WINDOW = 4
"""Rows in memory, as a multiple of the rows that run at once."""
_ORDERS = ("submitted", "completed")
_ON_ERROR = ("return", "raise")


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How a batch runs: see `Program.run_batch`."""

    num_threads: int | Literal["auto"] = "auto"
    progress_bar: bool = False
    order: Literal["submitted", "completed"] = "submitted"
    on_error: Literal["return", "raise"] = "return"
    results_file: str | os.PathLike[str] | None = None
    generator_style: bool = False

    def check(self) -> None:
        """Raises `CompileError` for options that are none, or that don't go together."""
        self.at_once()
        for name, known in (("order", _ORDERS), ("on_error", _ON_ERROR)):
            if getattr(self, name) not in known:
                raise CompileError(
                    f"{name}={getattr(self, name)!r} is not known",
                    hint="use " + " or ".join(f'"{item}"' for item in known),
                )
        if self.generator_style and self.on_error == "raise":
            raise CompileError(
                'on_error="raise" waits for all rows, and generator_style for none',
                hint="look at the error() of each state that is yielded",
            )

    def at_once(self) -> int:
        """How many rows run at once. They share one thread: this bounds load, not threads."""
        if self.num_threads == "auto":
            return max(96, 16 * (os.cpu_count() or 1))
        number = isinstance(self.num_threads, int) and not isinstance(self.num_threads, bool)
        if not number or self.num_threads < 1:
            raise CompileError(
                f"num_threads={self.num_threads!r} is not a number of rows at once",
                hint='give 1 or more, or "auto"',
            )
        return self.num_threads


class _Rows:
    """The rows of a batch by their index. `error` is what ended them before their time."""

    def __init__(self, rows: Any) -> None:
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise CompileError(
                f"a batch is a list or an iterator of rows, not {type(rows).__name__}",
                hint="write [{'question': ...}, ...]",
            )
        if isinstance(rows, Sequence):
            for row in rows:  # nothing has run yet, so nothing is lost
                _arguments(row)
        self.total = len(rows) if isinstance(rows, Sized) else None
        self.error: Exception | None = None
        self._rows = enumerate(rows)

    def following(self) -> tuple[int, Any] | None:
        """The next row, or None at the end."""
        try:
            return None if self.error is not None else next(self._rows, None)
        except Exception as error:  # noqa: BLE001 - raised once the rows before it are done
            self.error = error
            return None


def run_rows(
    program: start.Startable,
    rows: Any,
    settings: Mapping[str, Any],
    options: BatchOptions,
) -> Iterator[ProgramState]:
    """The finished state of every row, failed ones included. Leaving early cancels the rest.

    An error of the iterator that the rows come from is raised when the rows before it are done.
    """
    limit, outer = options.at_once(), current()
    ways: Rows = Outside(limit) if outer is None else Inside(limit, outer, settings)
    jobs: deque[tuple[int, Job]] = deque()
    pending = _Rows(rows)
    known = ResultsFile(options.results_file) if options.results_file is not None else None
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [job.cancel() for _, job in jobs])
        if known is not None:
            stack.enter_context(known)
        tick = _ticker(stack, options.progress_bar, pending.total)
        while True:
            _submit(program, pending, jobs, settings, ways, limit * WINDOW, known)
            if not jobs:
                break
            if options.order == "completed":
                ready = ways.first([job for _, job in jobs])
                found = next(item for item in jobs if item[1] is ready)
                jobs.remove(found)
            else:
                found = jobs.popleft()
            state = ways.result(found[1])
            if known is not None:
                known.write(found[0], state)
            tick()
            yield state
    if pending.error is not None:
        raise pending.error


def _submit(
    program: start.Startable,
    pending: _Rows,
    jobs: deque[tuple[int, Job]],
    settings: Mapping[str, Any],
    ways: Rows,
    window: int,
    known: ResultsFile | None,
) -> None:
    while len(jobs) < window:
        following = pending.following()
        if following is None:
            return
        index, row = following
        try:
            args, kwargs = _arguments(row)
        except CompileError as error:
            jobs.append((index, ways.known(start.failed(program, {}, error))))
            continue
        told = {**settings, **kwargs}
        done = known.find(index, program, args, told) if known else None
        job = ways.begin(program, args, told) if done is None else ways.known(done)
        jobs.append((index, job))


def _arguments(row: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(row, Mapping):
        return (), dict(row)
    if isinstance(row, tuple | list):
        return tuple(row), {}
    raise CompileError(
        f"a row of a batch is a dict of arguments or a tuple of them, not {type(row).__name__}",
        hint="write [{'question': ...}, ...]",
    )


def _ticker(stack: contextlib.ExitStack, wanted: bool, total: int | None) -> Callable[[], None]:
    if not wanted:
        return lambda: None
    progress = stack.enter_context(Progress())
    task = progress.add_task("rows", total=total)
    return lambda: progress.advance(task)


def gather(states: Iterable[ProgramState], on_error: str) -> list[ProgramState]:
    """All states. Raises `BatchFailed`, with the states so far attached, if the batch breaks off
    or, with on_error="raise", if a row has failed."""
    found: list[ProgramState] = []
    try:
        for state in states:
            found.append(state)  # noqa: PERF402 - what was there before an error is kept
    except Exception as error:
        if not found:
            raise
        raise BatchFailed(
            f"the batch broke off after {len(found)} rows: {type(error).__name__}: {error}",
            hint="the states of these rows are in .results",
            results=found,
        ) from error
    if on_error == "raise":
        _raise_failures(found)
    return found


def _raise_failures(states: list[ProgramState]) -> None:
    """Raise `BatchFailed` from the first failure, with all states attached, if there is one."""
    errors = [(index, state.error()) for index, state in enumerate(states)]
    failed = [(index, error) for index, error in errors if error is not None]
    if failed:
        index, first = failed[0]
        raise BatchFailed(
            f"{len(failed)} of {len(states)} rows failed, the first is row {index}: "
            f"{type(first).__name__}: {first}",
            hint="all states are in .results; on_error='return' returns them instead",
            results=states,
        ) from first
