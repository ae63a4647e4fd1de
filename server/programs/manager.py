"""Runs from their request to their end, and from one server to the next.

What lives here: `RunManager`: starting, watching, resuming. What does not: HTTP, and the run
itself (it happens on the engine's loop, see `programs/executor`).

A background run is on disk before its 202. When the server stops, background runs keep their
status and go on at the next start; others become "interrupted", which their clients may resume.

When the engine's process is replaced, a run that lost a step to it is executed again on its record,
so no effect that was recorded happens twice. Only a stream that has told its reader of text can't
take that back: it ends with the error, and its client may resume the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import structlog

from phloem.errors import Cancelled, EngineRestarted, Overloaded, PhloemError, where_of
from phloem.programs.api.start import Started, pin_prefix, prepare
from phloem.programs.executor.loop import submit
from phloem.programs.executor.values import show
from phloem.server.error_map import error_object, outcome_of
from phloem.server.http import bridge
from phloem.server.http.admission import Lease
from phloem.server.http.state import ServerState
from phloem.server.http.trace_context import current_trace
from phloem.server.journal.recording import JournalRecord, StoredEffect, read_effects
from phloem.server.programs.catalog import Catalog, Registered
from phloem.server.programs.changes import changes
from phloem.server.programs.live import LiveRun
from phloem.server.programs.rows import UNFINISHED, RunRow, Runs
from phloem.server.programs.spans import RunSpan

__all__ = ["RunManager"]

T = TypeVar("T")

log = structlog.get_logger("phloem.server")

LOST_AT_MOST = 10
"""Engines that a background run may lose one after the other without any progress: it may be what
kills them."""
LOST_WAITING = 3
"""The same for a run that somebody waits for."""
LONGEST_PAUSE_S = 60.0
AT_ONCE = 32
"""Runs that waited on disk and are live at a time: the queue is for requests."""


class RunManager:
    """The runs of a server."""

    def __init__(self, state: ServerState, catalog: Catalog, runs: Runs) -> None:
        self.state = state
        self.catalog = catalog
        self.runs = runs
        self.live: dict[str, LiveRun] = {}
        self._taking_up = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: set[asyncio.Task[None]] = set()

    async def pin_prefixes(self) -> None:
        """Once the model is loaded: compute what every run of a program begins with, and keep it.

        Where each caller has a KV namespace of its own (`isolate_keys`) there is nothing to share.
        """
        await self.state.engine.wait()
        if self.state.settings.isolate_keys or not self.state.engine.loaded:
            return
        for registered in self.catalog:
            work = pin_prefix(registered.program, self.state.engine.backend)
            try:
                tokens = await bridge.call(work)
            except PhloemError as error:
                # Only a head start is lost.
                log.warning("prefix_not_pinned", program=registered.name, reason=error.message)
            else:
                log.info("prefix_pinned", program=registered.name, tokens=tokens)

    # --- starting

    async def start(
        self, registered: Registered, row: RunRow, effects: Sequence[StoredEffect] = ()
    ) -> LiveRun:
        """Start a run from its beginning, or from the effects of another. Returns once the
        run is on disk. Raises for bad arguments and a full queue, before anything is kept."""
        gate = self.state.gate
        gate.check()
        record = JournalRecord.load(row.id, self.runs.store, effects, row.seed)
        started = self._prepare(registered, row, record)
        try:
            await asyncio.wrap_future(self.runs.insert(row))
            if effects:
                await asyncio.wrap_future(record.rewrite(effects))
        except PhloemError:
            started.coroutine.close()
            raise
        return self._launch(row, registered, started)

    async def resume(self, row: RunRow, *, repeat_unfinished: bool = False) -> LiveRun:
        """Go on with a run that is not over. A run of another program or model becomes
        stale; one that was taken up or ended since `row` was read stays as it is. Raises
        `Overloaded` while the model loads."""
        async with self._taking_up:
            kept = await asyncio.to_thread(self.runs.get, row.id)
            as_read = kept is not None and (kept.status, kept.attempt) == (row.status, row.attempt)
            if row.id in self.live or not as_read:
                return await self.told(kept or row)
            return await self._take_up(row, repeat_unfinished)

    async def _take_up(self, row: RunRow, repeat_unfinished: bool) -> LiveRun:
        differences = self.differences(row)
        if differences:
            row.status, row.finished_at = "stale", time.time()
            row.result = {"changed": differences}
            await asyncio.wrap_future(self.runs.finish(row, []))
            live = LiveRun(row)
            live.close()
            return live
        # One that waits on disk for its first turn has not been started yet.
        row.attempt += row.status != "queued" or row.finished_at is not None
        row.status, row.finished_at, row.error, row.result = "queued", None, None, None
        await asyncio.wrap_future(
            self.runs.update(
                row.id, status="queued", attempt=row.attempt, finished_at=None, error=None,
                result=None,
            )
        )  # fmt: skip
        effects = await asyncio.to_thread(read_effects, self.runs.store, row.id)
        record = JournalRecord.load(row.id, self.runs.store, effects, row.seed)
        record.repeat_unfinished = repeat_unfinished
        registered = self.catalog.get(row.program)
        return self._launch(row, registered, self._prepare(registered, row, record))

    async def told(self, row: RunRow) -> LiveRun:
        """The run with its events: as it goes on, or as they were kept."""
        live = self.live.get(row.id)
        if live is None:
            live = LiveRun(row)
            kept = await asyncio.to_thread(self.runs.events, row.id)
            live.events = [(name, data) for name, data in kept or ()]
            live.close()
        return live

    async def take_up(self, waiting: Sequence[str]) -> None:
        """Begin each of these runs that still waits on disk, `AT_ONCE` at a time."""
        places = asyncio.Semaphore(AT_ONCE)
        for run in waiting:
            await places.acquire()
            row = await asyncio.to_thread(self.runs.get, run)
            begins = row is not None and row.status == "queued" and run not in self.live
            live = await self._resumed(row) if row is not None and begins else None
            if live is None:
                places.release()
            else:
                self.spawn(_release_after(live, places))

    async def _resumed(self, row: RunRow) -> LiveRun | None:
        """The run going on, or None: what keeps it from that is no reason to leave others alone."""
        try:
            return await self.resume(row)
        except PhloemError as error:
            log.error("run_not_resumed", run=row.id, reason=error.message)
            return None

    def differences(self, row: RunRow) -> list[str]:
        """Why a run can't go on with what is loaded now; empty if it can."""
        if row.damaged:
            return [f"its {' and '.join(row.damaged)} can't be read in the journal"]
        if row.program not in self.catalog:
            return [f"the program {row.program} is not registered"]
        registered = self.catalog.get(row.program)
        found = []
        if row.fingerprint != self.state.engine.backend.capabilities.fingerprint:
            found.append("the model is another one")
        if row.program_hash != registered.hash:
            found += changes(row.graph, registered.program.graph.describe())
        return found

    def _prepare(self, registered: Registered, row: RunRow, record: JournalRecord) -> Started:
        settings: dict[str, Any] = {
            "backend": self.state.engine.backend,
            "retriever": self.state.retriever,
            "seed": row.seed,
            "deadline": row.options.get("deadline_s"),
            "token_budget": row.options.get("token_budget"),
            "namespace": row.caller if self.state.settings.isolate_keys else "",
            "trace_values": self._traces_values(),
        }
        own = registered.program.parameters
        settings |= row.options.get("sampling", {})
        # A parameter that has a setting's name gets the client's value or its default, not ours.
        asked = {name: value for name, value in settings.items() if name not in own}
        asked |= registered.parse(row.args)
        started = prepare(registered.program, (), asked, record)
        started.run.id = row.id
        started.run.trace_id = row.trace_id
        return started

    def _traces_values(self) -> bool:
        asked = self.state.settings.trace_values
        return not self.state.keys if asked is None else asked

    async def cancel(self, run: str) -> None:
        """End a run that is not over, and wait for its end."""
        live = self.live.get(run)
        if live is not None:
            live.cancel("client")
            await live.ended()
            return
        row = await asyncio.to_thread(self.runs.get, run)
        if row is not None and row.status in UNFINISHED:
            # It waits on disk for its turn.
            values = {"status": "cancelled", "finished_at": time.time()}
            await asyncio.wrap_future(self.runs.update(run, **values))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` beside the requests; it ends with the server at the latest."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("background_work_failed", exc_info=error)

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _launch(self, row: RunRow, registered: Registered, started: Started) -> LiveRun:
        live = LiveRun(row)
        self.live[row.id] = live
        task = asyncio.ensure_future(self._watch(live, registered, started))
        self._watched.add(task)
        task.add_done_callback(self._watched.discard)
        return live

    # --- watching

    async def _watch(self, live: LiveRun, registered: Registered, started: Started) -> None:
        """From the queue to the end; whatever happens, the run's end is kept and told."""
        arrived = time.monotonic()
        try:
            lease = await self._place(live)
        except PhloemError as refused:
            started.coroutine.close()
            await self._end(live, started, refused, arrived)
            return
        error: BaseException | None
        try:
            started, error = await self._run_to_its_end(live, registered, started)
        except Exception as bug:
            # Ours, not the program's. The run ends all the same: somebody may wait for it.
            log.error("run_not_watched", run=live.row.id, exc_info=bug)
            error = bug
        finally:
            lease.release()
        await self._end(live, started, error, arrived)

    async def _run_to_its_end(
        self, live: LiveRun, registered: Registered, started: Started
    ) -> tuple[Started, BaseException | None]:
        """Do it, again if its engine was replaced; returns the last execution and its error."""
        lost = 0
        while True:
            known = _effects(started)
            error = await self._run(live, started)
            if not isinstance(error, EngineRestarted) or (live.streamed and live.told_text):
                return started, error
            lost = lost + 1 if _effects(started) == known else 1
            if lost >= (LOST_AT_MOST if live.row.background else LOST_WAITING):
                return started, error
            log.warning("run_lost_its_engine", run=live.row.id, reason=error.details.get("reason"))
            try:
                await self._waited(live, self._next_engine(lost))
                started = await self._again(live, registered, str(error.details.get("reason")))
            except PhloemError as problem:
                return started, problem

    async def _next_engine(self, lost: int) -> None:
        """Wait for an engine, and before for a while that grows with those that were lost.

        Runs wait differently long: so one that kills engines gets out of step with the others,
        which make progress meanwhile.
        """
        if lost > 1:
            pause = min(LONGEST_PAUSE_S, 2.0 ** (lost - 2))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        await self.state.engine.replaced()

    async def _again(self, live: LiveRun, registered: Registered, reason: str) -> Started:
        """The run from its beginning, on what its last execution recorded."""
        row = live.row
        live.begin_again(reason)
        # Writes are done in order: when this one is on disk, so are the effects.
        await asyncio.wrap_future(self.runs.update(row.id, attempt=row.attempt))
        effects = await asyncio.to_thread(read_effects, self.runs.store, row.id)
        record = JournalRecord.load(row.id, self.runs.store, effects, row.seed)
        return self._prepare(registered, row, record)

    async def _place(self, live: LiveRun) -> Lease:
        """A place at the engine. A run that was acknowledged waits as long as it takes."""
        return await self._waited(live, self._enter(live))

    async def _waited(self, live: LiveRun, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`, which the run's cancellation ends."""
        waiting = asyncio.ensure_future(work)
        live.on_cancel(waiting.cancel)
        try:
            return await waiting
        except asyncio.CancelledError:
            if live.cancelled_by is None:
                raise
            raise cancelled(live) from None

    async def _enter(self, live: LiveRun) -> Lease:
        limit = live.row.options.get("deadline_s") or self.state.settings.request_timeout_s
        while True:
            try:
                return await self.state.gate.enter(limit)
            except Overloaded as error:
                if not live.row.background:
                    raise
                await asyncio.sleep(error.details["retry_after_s"])

    async def _run(self, live: LiveRun, started: Started) -> BaseException | None:
        """Do it; returns what ended it early, if anything did."""
        live.row.status = "running"
        self.runs.update(live.row.id, status="running")
        span = RunSpan(started.run, current_trace.get())
        with span.current():
            future = submit(started.coroutine)
        live.on_cancel(future.cancel)
        try:
            async for event in started.run.feed:
                live.put(event.type, event.to_json())
        except BaseException:
            future.cancel()
            raise
        # The run keeps its error itself, with the place where it happened.
        await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)
        error = started.run.error
        if error is not None and live.cancelled_by is not None:
            error = cancelled(live)
        span.end(error)
        return error

    async def _end(
        self, live: LiveRun, started: Started, error: BaseException | None, arrived: float
    ) -> None:
        row, run = live.row, started.run
        live.error = error
        keep_going = live.cancelled_by == "server" and row.background
        if not keep_going:
            row.finished_at = time.time()
            row.status = _status(live, error)
            row.result = _result(started)
            row.error = error_object(error)["error"] if error is not None else None
        if error is not None:
            live.put("error", error_object(error)["error"])
        live.put("done", row.reply().model_dump())
        outcome = "stop" if error is None else outcome_of(error)
        self.state.metrics.count("run", outcome, run.usage, time.monotonic() - arrived)
        self.state.metrics.count_retrievals(run.feed.events)
        place = where_of(error) if error is not None else None
        if self.state.settings.log_prompts:
            log.info("run_text", run=row.id, text=started.state._branch.transcript.text())
        log.info(
            "run", run=row.id, program=row.program, status=row.status, attempt=row.attempt,
            trace_id=row.trace_id, error=type(error).__name__ if error else None,
            node=place.node if place else None, line=place.line if place else None,
        )  # fmt: skip
        if not keep_going:
            try:
                await asyncio.wrap_future(self.runs.finish(row, live.events))
            except PhloemError as problem:
                log.error("run_not_kept", run=row.id, reason=problem.message)
        live.close()
        self.live.pop(row.id, None)

    # --- the server's life

    async def recover(self, left: Sequence[RunRow]) -> None:
        """Go on with what the last server left, once the model is there.

        `left` was read before this server takes requests: later ones it starts itself.
        """
        await self.state.engine.wait()
        if not self.state.engine.loaded:
            return
        waiting = [row.id for row in left if row.background and row.status == "queued"]
        for row in left:
            if not row.background:
                self.runs.update(row.id, status="interrupted", finished_at=time.time())
            elif row.status == "running" and (live := await self._resumed(row)) is not None:
                log.info("run_recovered", run=row.id, status=live.row.status, attempt=row.attempt)
        log.info("runs_wait", runs=len(waiting))
        await self.take_up(waiting)

    async def stop(self) -> None:
        """End all runs; those in the background are resumed by the next server."""
        for task in self._tasks:
            task.cancel()
        for live in list(self.live.values()):
            live.cancel("server")
        if self._tasks or self._watched:
            await asyncio.wait(self._tasks | self._watched)
        self.runs.store.close()


def cancelled(live: LiveRun) -> PhloemError:
    """The error of a run that was ended early."""
    if live.cancelled_by == "server":
        return Cancelled("the server is stopping", hint="resume it when the server is back")
    if live.cancelled_by == "reader":
        return Cancelled(
            "the client went away",
            hint="resume it, or send its request again with the same Idempotency-Key",
            reader_gone=True,
        )
    return Cancelled("the run was cancelled")


async def _release_after(live: LiveRun, places: asyncio.Semaphore) -> None:
    await live.ended()
    places.release()


def _effects(started: Started) -> int:
    """How many effects a run's record has."""
    return sum(map(len, started.run.record.entries.values()))


def _status(live: LiveRun, error: BaseException | None) -> Any:
    if error is None:
        return "succeeded"
    return {"server": "interrupted", None: "failed"}.get(live.cancelled_by, "cancelled")


def _result(started: Started) -> dict[str, Any]:
    state = started.state
    branch = state._branch
    return {
        "value": show(started.run.value),
        "variables": {name: show(value) for name, value in state.variables().items()},
        "text": branch.transcript.text(),
        "messages": branch.transcript.messages(),
        "usage": asdict(started.run.usage),
    }
