"""Keeping one engine process alive: watched, killed when it hangs or leaks, replaced when it ends.

What lives here: `Supervisor`, a thread that does so, and its `Limits`. What does not: the process
(`process.py`) and what has been asked of it (`inflight.py`).

The first load is its owner's affair: an error is raised to whoever waits. From then on an end is
followed by a replacement: at once, and if that one ends soon too, after a pause that doubles up to
a bound. Work that was asked of a process that ended fails with `EngineRestarted`; work that is
asked while a replacement loads waits for it, and while there is a pause it is refused.
"""

from __future__ import annotations

import functools
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from phloem.errors import (
    Cancelled,
    EngineRestarted,
    EngineUnavailable,
    ModelError,
    PhloemError,
)
from phloem.runtime.engine.stats import Stats
from phloem.runtime.host import wire
from phloem.runtime.host.inflight import Inflight
from phloem.runtime.host.process import EngineProcess

__all__ = ["REASONS", "Limits", "State", "Supervisor"]

log = logging.getLogger(__name__)

REASONS = ("crashed", "stuck", "memory")
State: TypeAlias = Literal["new", "loading", "ready", "restarting", "failed", "closed"]

_TICK_S = 0.25
_PING_S = 1.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a process is given up, and how fast it is replaced. Times are seconds.

    `memory_bytes` bounds the memory of its own (mapped weights do not count); None is what it
    has once the model is loaded, plus the whole KV pool, plus `spare_bytes`. Without a sign of
    life for `stuck_s` it is taken to hang; one pass of the engine must be shorter. One that has
    lived for `stable_s` is replaced at once, others after a pause of at most `longest_pause_s`.
    """

    memory_bytes: int | None = None
    spare_bytes: int = 2 << 30
    stuck_s: float = 30.0
    stable_s: float = 60.0
    longest_pause_s: float = 30.0

    def pause(self, failures: int) -> float:
        """Seconds before the next process, after so many that did not live long."""
        return 0.0 if failures < 2 else min(self.longest_pause_s, 0.25 * 2.0**failures)


@dataclass(slots=True)
class _End:
    """Why a process is no more, and how long it was ready. `error`: it said why it can't load."""

    reason: str
    how: str
    error: PhloemError | None = None
    lived_s: float = 0.0


@dataclass(slots=True)
class _Watch:
    """What is known of the process of now."""

    process: EngineProcess
    events: queue.SimpleQueue[wire.Ready | wire.LoadFailed | None]
    ready_at: float | None = None
    memory_limit: float = math.inf
    pinged: float = field(default_factory=time.monotonic)
    looked: float = field(default_factory=time.monotonic)
    heard: float = 0.0
    silent_s: float = 0.0
    """For how long it has not answered, as far as this process was there to hear it."""
    killed_for: str | None = None


class Supervisor:
    """Its methods may be called from any thread. `on_ready` is told of each process that is."""

    def __init__(self, load: wire.Load, limits: Limits) -> None:
        self.inflight = Inflight()
        self.state: State = "new"
        self.phase = ""
        """How far loading is, for people."""
        self.stats: Stats | None = None
        """What the engine had counted about a second ago."""
        self.memory = 0
        """Bytes of the process's own, as last seen."""
        self.restarts: Counter[str] = Counter()
        """Processes that were given up, by `REASONS`."""
        self.on_ready: Callable[[], None] = lambda: None
        self._load = load
        self._limits = limits
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ready: wire.Ready | None = None
        self._error: PhloemError | None = None
        self._load_s = 1.0
        self._watch: _Watch | None = None

    @property
    def pid(self) -> int | None:
        """The process of now, if there is one."""
        watch = self._watch
        return None if watch is None else watch.process.pid

    def ready(self) -> wire.Ready:
        """What is known of the model. The first call starts the process; waits until it has loaded.

        Raises what its loader raised, and `Cancelled` after `close`.
        """
        with self._changed:
            if self.state == "closed":
                raise Cancelled("the backend is closed", hint="make a new one")
            if self._ready is None and (self._thread is None or self.state == "failed"):
                self._set("loading")
                self._thread = threading.Thread(target=self._run, name="phloem-host", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._ready is not None or self.state != "loading")
            if self._ready is not None:
                return self._ready
            assert self._error is not None
            raise self._error

    def close(self) -> None:
        """End all jobs with `Cancelled`, and the process. May be called twice."""
        with self._changed:
            self._error = Cancelled("the backend is closed", hint="make a new one")
            self._set("closed")
            watch, thread = self._watch, self._thread
        if watch is not None:
            watch.events.put(None)
        if thread is not None:
            thread.join()
        for tell in self.inflight.detach(_stopped, refuse=True):
            tell()

    def _set(self, state: State) -> None:
        with self._changed:
            if self.state != "closed":
                self.state = state
            self._changed.notify_all()

    # On the thread

    def _run(self) -> None:
        failures = 0
        while (end := self._one_process()) is not None:
            if self._ready is None:
                self._error = end.error or EngineUnavailable(
                    f"the engine process {end.how} while it loaded the model", hint="see the log"
                )
                self._set("failed")
                return
            failures = 1 if end.lived_s >= self._limits.stable_s else failures + 1
            self.restarts[end.reason] += 1
            pause = self._limits.pause(failures)
            error = functools.partial(self._restarted, end, time.monotonic() + pause)
            owners = self.inflight.detach(error, refuse=pause > 0)
            self._set("restarting")
            log.error(
                "the engine process %s (%s); %d steps were lost, the next one starts in %g s",
                end.how, end.reason, len(owners), pause,
            )  # fmt: skip
            for tell in owners:
                tell()
            with self._changed:
                self._changed.wait_for(lambda: self.state == "closed", timeout=pause)
            self.inflight.wait_for_next()

    def _restarted(self, end: _End, until: float) -> EngineRestarted:
        wait = max(0.0, until - time.monotonic()) + self._load_s
        cause = f": {end.error.message}" if end.error is not None else ""
        return EngineRestarted(
            f"the engine process {end.how} and is being replaced{cause}",
            hint="try again: the next one is on its way",
            reason=end.reason,
            retry_after_s=math.ceil(wait),
        )

    def _one_process(self) -> _End | None:
        """Start one and stay with it to its end. None: the end was asked for."""
        events: queue.SimpleQueue[wire.Ready | wire.LoadFailed | None] = queue.SimpleQueue()
        with self._changed:
            if self.state == "closed":
                return None
            try:
                process = EngineProcess(
                    self._load, lambda m: self._received(m, events), lambda: events.put(None)
                )
            except OSError as error:
                return _End("crashed", f"can't be started ({error})")
            watch = self._watch = _Watch(process, events)
        end = self._attend(watch)
        self._watch, self.memory = None, 0
        if end is not None and watch.ready_at is not None:
            end.lived_s = time.monotonic() - watch.ready_at
        return end

    def _attend(self, watch: _Watch) -> _End | None:
        process = watch.process
        while True:
            try:
                event = watch.events.get(timeout=_TICK_S)
            except queue.Empty:
                self._look(watch)
                continue
            if self.state == "closed":
                self._end(watch)
                return None
            match event:
                case wire.Ready() if self._ready is None or _same(event, self._ready):
                    self._begin(watch, event)
                case wire.Ready():
                    process.kill()
                    how = f"{process.reap()}: the model's files have changed"
                    return _End("crashed", how, ModelError("the model's files have changed"))
                case wire.LoadFailed():
                    process.stop(_STOP_S)
                    error = event.error.error()
                    return _End("crashed", f"can't load the model ({error.message})", error)
                case None:
                    return _End(watch.killed_for or "crashed", process.reap())

    @staticmethod
    def _end(watch: _Watch) -> None:
        """Let a process end its jobs; one that still loads has none, and is not waited for."""
        if watch.ready_at is not None:
            watch.process.stop(_STOP_S)
        else:
            watch.process.kill()
            watch.process.reap()

    def _begin(self, watch: _Watch, ready: wire.Ready) -> None:
        now = time.monotonic()
        watch.ready_at = now
        self._load_s = now - watch.process.started
        own = watch.process.memory()
        limits = self._limits
        if own is not None:
            roomy = own + ready.pool_bytes + limits.spare_bytes
            watch.memory_limit = roomy if limits.memory_bytes is None else limits.memory_bytes
        self.inflight.attach(watch.process.send)
        with self._changed:
            self._ready = ready
            self._set("ready")
        log.info("the engine process %d is ready after %.1f s", watch.process.pid, self._load_s)
        self.on_ready()

    def _look(self, watch: _Watch) -> None:
        """Ask for a sign of life, and give a process up that hangs or has grown too large."""
        process, now = watch.process, time.monotonic()
        self.inflight.expire()
        if watch.killed_for is not None:
            return
        passed, watch.looked = min(now - watch.looked, _PING_S), now
        watch.silent_s = watch.silent_s + passed if process.answered == watch.heard else 0.0
        watch.heard = process.answered
        if now - watch.pinged >= _PING_S:
            watch.pinged = now
            process.send(wire.encode_to_child(wire.Ping(0)))
        self.memory = process.memory() or 0
        if self.memory > watch.memory_limit:
            log.error("the engine process has grown to %d MB", self.memory >> 20)
            watch.killed_for = "memory"
        elif watch.silent_s > self._limits.stuck_s:
            log.error("the engine process gives no sign of life for %g s", self._limits.stuck_s)
            watch.killed_for = "stuck"
        if watch.killed_for is not None:
            process.kill()

    # On the process's reading thread

    def _received(
        self,
        message: wire.FromChild,
        events: queue.SimpleQueue[wire.Ready | wire.LoadFailed | None],
    ) -> None:
        match message:
            case wire.Reply() | wire.Broken():
                self.inflight.receive(message)
            case wire.Pong():
                if message.stats is not None:
                    self.stats = message.stats
            case wire.Log():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case wire.Loading():
                self.phase = message.phase
                log.info("the engine process is %s", message.phase)
            case wire.Ready() | wire.LoadFailed():
                events.put(message)


def _same(one: wire.Ready, other: wire.Ready) -> bool:
    return one.capabilities.fingerprint == other.capabilities.fingerprint


def _stopped() -> PhloemError:
    return Cancelled("the engine was stopped", hint="open a new backend")
