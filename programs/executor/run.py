"""One run of a program: its engine, its limits, its events and its tasks.

What lives here: `Run` (what all branches of a run share), `Site` (where in the source an
effect comes from) and `Settings` (what `program.run()` was told). What does not: branches
(`branch.py`) and the doing of effects (`perform.py`).
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from phloem.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    Where,
    attach_where,
)
from phloem.grammar.spec import Analyser
from phloem.programs import registry
from phloem.programs.effects import Search
from phloem.programs.events import AnyEvent
from phloem.programs.executor.feed import Feed
from phloem.programs.executor.record import Record
from phloem.programs.protocol import Backend, ChatFormat, Usage
from phloem.retrieval.base import Hits, Retriever, traceparent

__all__ = ["Run", "Settings", "Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """The place in a program that an effect comes from."""

    program: str
    node: str | None = None
    file: str | None = None
    line: int | None = None

    @property
    def origin(self) -> str | None:
        """ "file:line", the form that sessions keep with their text."""
        return f"{self.file}:{self.line}" if self.file else None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run was told. `deadline` is in seconds from the start, `sampling` by the names
    of `protocol.SamplingParams`, `token_budget` counts tokens computed and generated, `samples` is
    the n of steps that give none. `trace_values`: events may tell the program's own values."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    backend: Backend | None = None
    retriever: Retriever | None = None
    deadline: float | None = None
    token_budget: int | None = None
    samples: int = 1
    namespace: str = ""
    priority: int = 0
    record: Record | None = None
    step_cache: MutableMapping[str, Any] | None = None
    trace_values: bool = False


class Run:
    """The shared part of a run. Used on the event loop only, but for `feed` and `error`."""

    def __init__(self, program: str, args: Mapping[str, Any], settings: Settings) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.trace_id, self.traceparent = _trace()
        self.program = program
        self.args = args
        self.settings = settings
        self.record = settings.record if settings.record is not None else Record()
        self.seed = self.record.seed(settings.seed, lambda: random.getrandbits(31))
        self.feed = Feed()
        self.watched = True
        """Whether text may be read as it comes, not only when the run is over."""
        self.usage = Usage()
        self.error: BaseException | None = None
        self.value: Any = None
        self.last_values: Mapping[str, Any] | None = None
        """The variables of the innermost program when an error left it."""
        self._started = time.monotonic()
        self.chat: ChatFormat | None = None
        self.branches: list[Any] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._early: dict[str, tuple[Search, asyncio.Task[Hits]]] = {}
        self._ready: Backend | None = None
        self._loading = asyncio.Lock()
        self._retriever: Retriever | None = settings.retriever
        self._finding: asyncio.Task[Retriever] | None = None

    @property
    def recording(self) -> bool:
        """Whether the record must be complete enough to run again from it."""
        return self.settings.record is not None

    @property
    def keeps(self) -> bool:
        """Whether results of steps are kept at all, in a record or in a step cache."""
        return self.recording or self.settings.step_cache is not None

    def start_early(self, node: str, effect: Search, task: asyncio.Task[Hits]) -> None:
        """Remember a retrieval that was started before its node."""
        self._early[node] = (effect, task)

    def has_early(self, node: str) -> bool:
        """Whether the retrieval of `node` was started and not yet taken."""
        return node in self._early

    def take_early(self, node: str | None, effect: Search) -> asyncio.Task[Hits] | None:
        """The early retrieval for `node`, if it asked just what `effect` asks."""
        asked, task = self._early.pop(node or "", (None, None))
        if asked == effect:
            return task
        if task is not None:
            task.cancel()
        return None

    @property
    def deadline(self) -> float | None:
        """The `time.monotonic()` instant by which the run must be done, or None."""
        seconds = self.settings.deadline
        return None if seconds is None else self._started + seconds

    async def backend(self) -> Backend:
        """The run's engine, loaded: that may take seconds, so it is done off the loop."""
        if self._ready is None:
            async with self._loading:
                if self._ready is None:
                    loaded = await asyncio.to_thread(_load, self.settings.backend)
                    self.record.belongs_to(loaded.capabilities.fingerprint)
                    self._ready = loaded
        return self._ready

    async def retriever(self) -> Retriever:
        """The run's retriever."""
        if self._retriever is None:
            if self._finding is None:
                self._finding = self.spawn(asyncio.to_thread(registry.default, "retriever"))
            # All who wait go on in the same turn of the loop, so that their searches can be joined.
            self._retriever = await asyncio.shield(self._finding)
        return self._retriever

    @staticmethod
    def analyser() -> Analyser:
        """The process's analyser of constraints."""
        return registry.default("analyser")  # type: ignore[no-any-return]

    def emit(self, event: Callable[..., AnyEvent], site: Site, path: str, /, **fields: Any) -> None:
        """Put an event of class `event` on the feed."""
        self.feed.put(
            event(
                run=self.id,
                seq=len(self.feed),
                at=time.monotonic() - self._started,
                path=path,
                node=site.node,
                file=site.file,
                line=site.line,
                **fields,
            )
        )

    def spend(self, usage: Usage) -> None:
        """Count a step's tokens."""
        self.usage = self.usage + usage

    def allowance(self) -> int | None:
        """Tokens the run may still compute or generate, or None. Raises `BudgetExceeded`."""
        budget = self.settings.token_budget
        if budget is None:
            return None
        spent = self.usage.prefilled + self.usage.generated + self.usage.scored
        if spent >= budget:
            raise BudgetExceeded(
                f"the run has used {spent} tokens of its budget of {budget}",
                hint="raise token_budget= or shorten the program",
                spent=spent,
                budget=budget,
            )
        return budget - spent

    def locate(self, error: BaseException, site: Site) -> None:
        """Attach program, node, source line and trace id to an error that leaves the run."""
        attach_where(error, Where(site.program, site.node, site.file, site.line, self.trace_id))

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that ends with the run at the latest."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Who needs the outcome awaits the task; asyncio need not report what nobody needed.
        if not task.cancelled():
            task.exception()

    async def stop_tasks(self) -> None:
        """Cancel what still runs for this run, and wait until it is gone."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def remaining(self) -> float | None:
        """Seconds until the deadline, or None. Raises `DeadlineExceeded` once it has passed."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.too_late()
        return left

    def too_late(self) -> DeadlineExceeded:
        """The error of a run that missed its deadline."""
        return DeadlineExceeded(
            f"the run did not finish within its deadline of {self.settings.deadline} s",
            hint="raise deadline= or lower max_tokens",
        )

    def with_settings(self, **changes: Any) -> Settings:
        """This run's settings with changes, for a program called inside it."""
        return replace(self.settings, **changes)


def _trace() -> tuple[str, str]:
    """The trace that the run belongs to, and the header that what it calls is sent: the caller's,
    or that of a new trace (https://www.w3.org/TR/trace-context/)."""
    given = (traceparent.get() or "").split("-")
    if len(given) == 4 and len(given[1]) == 32:
        return given[1], "-".join(given)
    new = uuid.uuid4().hex
    return new, f"00-{new}-{uuid.uuid4().hex[:16]}-01"


def _load(backend: Backend | None) -> Backend:
    loaded: Backend = registry.default("backend") if backend is None else backend
    # An engine that loads when it is first asked for its abilities does so here.
    _ = loaded.capabilities
    return loaded
