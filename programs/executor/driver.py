"""A run from its first event to its last.

What lives here: `drive_run`, which owns the task of a run: deadline, end of forks, cleaning
up, and the final event. What does not: the program's nodes (`machine.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from phloem.errors import Cancelled, attach_where, where_of
from phloem.grammar.spec import Constraint
from phloem.programs.events import RunFailed, RunFinished, RunStarted
from phloem.programs.executor import hub, witness
from phloem.programs.executor.run import Run, Site
from phloem.programs.executor.values import show
from phloem.retrieval.base import traceparent

__all__ = ["drive_run"]


async def drive_run(
    run: Run, body: Callable[[], Any], constraints: Sequence[Constraint] = ()
) -> Any:
    """Run `body` (the machine) in a greenlet to its end and return its value.

    `constraints` are those that the program's steps may use: the engine compiles them meanwhile.
    Whatever happens, the feed ends, tasks of the run are gone and sessions are closed.
    """
    site = Site(run.program)
    token = traceparent.set(traceparent.get() or run.traceparent)
    run.emit(
        RunStarted,
        site,
        "",
        program=run.program,
        args={name: show(value) for name, value in run.args.items()},
        trace_id=run.trace_id,
    )
    if constraints and run.record.mode != "replay":
        run.spawn(_prepare(run, constraints))
    try:
        run.value = await _within_deadline(run, body)
        await run.stop_tasks()
        run.record.settle_failure()
        run.emit(RunFinished, site, "", value=show(run.value), usage=run.usage)
        return run.value
    except BaseException as error:
        # Readers in other tasks and threads must not take the run's cancellation for their own.
        cancelled = isinstance(error, asyncio.CancelledError)
        run.error = Cancelled("the run was cancelled by its owner") if cancelled else error
        run.locate(run.error, site)
        await run.stop_tasks()
        place = where_of(run.error)
        values = run.settings.trace_values
        failed = Site(run.program, place.node, place.file, place.line) if place else site
        run.emit(
            RunFailed,
            failed,
            "",
            error=type(run.error).__name__,
            message=str(run.error),
            usage=run.usage,
            cause=witness.cause_of(run.error),
            excerpt=witness.excerpt(failed.file, failed.line) if values else (),
            variables=run.last_values,
        )
        raise
    finally:
        for branch in run.branches:
            await branch.close()
        run.feed.close()
        traceparent.reset(token)


async def _prepare(run: Run, constraints: Sequence[Constraint]) -> None:
    backend = await run.backend()
    await backend.prepare(constraints)


async def _within_deadline(run: Run, body: Callable[[], Any]) -> Any:
    limit = asyncio.timeout(run.remaining())
    try:
        async with limit:
            value = await hub.drive(body)
            for branch in run.branches:
                await branch.idle()
    except TimeoutError as error:
        if limit.expired():
            # The cancellation that the limit sent through the program knows where it was.
            late, place = run.too_late(), error.__cause__ and where_of(error.__cause__)
            if place:
                attach_where(late, place)
            raise late from None
        raise
    for branch in run.branches:
        if branch.error is not None and not branch.error_seen:
            raise branch.error
    return value
