"""How a row of a batch runs: as a run of its own, or inside the program that asks for the batch.

What lives here: the two kinds of rows, with the same four methods. What does not: their order and
their number at once (`batch.py`). A row's error stays in its state, whichever way it ran.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from phloem.errors import CompileError
from phloem.programs.api import start
from phloem.programs.api.state import ProgramState
from phloem.programs.executor import hub, loop
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.frame import Frame

__all__ = ["Inside", "Job", "Outside", "Rows"]

Job: TypeAlias = Any
"""A future of a row's state: of `concurrent.futures` or of `asyncio`, as the rows are."""


class Rows(Protocol):
    """The rows of one batch."""

    def begin(
        self, program: start.Startable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Job:
        """Begin a row when there is a place for it."""

    def known(self, state: ProgramState) -> Job:
        """A row that is over already."""

    def first(self, jobs: Sequence[Job]) -> Job:
        """Wait until one of the jobs is done, and return it."""

    def result(self, job: Job) -> ProgramState:
        """Wait for the row."""


class Outside:
    """Rows for a caller outside of any program: each is a run of its own."""

    def __init__(self, at_once: int) -> None:
        self._gate = asyncio.Semaphore(at_once)

    def begin(
        self, program: start.Startable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Job:
        """See `Rows`."""
        return loop.submit(self._run(program, args, kwargs))

    async def _run(
        self, program: start.Startable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ProgramState:
        async with self._gate:
            try:
                started = start.prepare(program, args, kwargs)
            except Exception as error:  # noqa: BLE001 - kept as the row's result
                return start.failed(program, kwargs, error)
            started.run.watched = False
            try:
                await started.coroutine
            except Exception:  # noqa: BLE001 - the state holds it
                return started.state
            return started.state

    def known(self, state: ProgramState) -> Job:
        """See `Rows`."""
        job: concurrent.futures.Future[ProgramState] = concurrent.futures.Future()
        job.set_result(state)
        return job

    def first(self, jobs: Sequence[Job]) -> Job:
        """See `Rows`."""
        done, _ = concurrent.futures.wait(jobs, return_when=concurrent.futures.FIRST_COMPLETED)
        return next(job for job in jobs if job in done)

    def result(self, job: Job) -> ProgramState:
        """See `Rows`."""
        state: ProgramState = loop.wait(job)
        return state


class Inside:
    """Rows for a running program: like a program that it runs, each has a fresh session of the same
    run, and with it the run's engine, deadline, budget and record."""

    def __init__(self, at_once: int, outer: Frame, settings: Mapping[str, Any]) -> None:
        refused = [name for name in settings if name in start.SETTINGS]
        if refused:
            raise CompileError(
                f"{refused[0]}= can't be set for a batch inside a program",
                hint="set it on the outer run",
            )
        self._gate = asyncio.Semaphore(at_once)
        self._outer = outer

    def begin(
        self, program: start.Startable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Job:
        """See `Rows`."""
        # The branch gets its place in the record here: in the program's order, not the engine's.
        branch = self._outer.branch.fresh()
        return self._outer.run.spawn(self._run(program, args, kwargs, branch))

    async def _run(
        self,
        program: start.Startable,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        branch: Branch,
    ) -> ProgramState:
        async with self._gate:
            try:
                return await hub.drive(
                    lambda: start.nested_fresh(program, self._outer, args, kwargs, branch)
                )
            except Exception as error:  # noqa: BLE001 - the state holds it
                branch.error, branch.error_seen = error, True
                self._outer.run.record.settle_failure(branch.path)
                return ProgramState(branch)

    def known(self, state: ProgramState) -> Job:
        """See `Rows`."""
        job: asyncio.Future[ProgramState] = asyncio.get_running_loop().create_future()
        job.set_result(state)
        return job

    def first(self, jobs: Sequence[Job]) -> Job:
        """See `Rows`."""
        hub.wait(asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED))
        return next(job for job in jobs if job.done())

    def result(self, job: Job) -> ProgramState:
        """See `Rows`."""
        state: ProgramState = hub.wait(job)
        return state
