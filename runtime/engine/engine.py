"""The engine: one thread that owns the decoder, its KV, and every job.

What lives here: `Engine`: the thread and its inbox. What does not: what a step does
(`scheduler.py`) and sessions (`runtime/embedded_session.py`).

Everything that touches the state is run by the thread, in the order in which it was asked for;
other threads only put commands into the inbox.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from phloem.errors import Cancelled, Overloaded, PromptTooLong
from phloem.runtime.engine.audit import audit
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.messages import Failed
from phloem.runtime.engine.scheduler import step
from phloem.runtime.engine.state import EngineState
from phloem.runtime.engine.stats import Stats
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.model.batch import Decoder

__all__ = ["Engine"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Engine:
    """Runs jobs on one decoder. Every method may be called from any thread.

    The rule for limits: a job whose prompt and requested tokens together exceed the context or
    the KV pool, whichever is smaller, is refused at once with `PromptTooLong`; nothing is ever
    clamped.
    """

    def __init__(self, decoder: Decoder, vocabulary: Vocabulary, config: EngineConfig) -> None:
        self._state = EngineState(decoder, vocabulary, config)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="phloem-engine", daemon=True)
        self._thread.start()
        # A daemon thread inside of torch while the interpreter goes down can crash it.
        atexit.register(self.stop)

    @property
    def max_tokens(self) -> int:
        """Tokens a sequence may have, prompt and output together."""
        return self._state.max_tokens

    def submit(self, job: Job) -> None:
        """Queue a job; its outcome, also a refusal, comes through `job.deliver`.

        Raises `PromptTooLong` for a job that can never run.
        """
        tokens, requested, limit = job.prompt, job.requested(), self.max_tokens
        if tokens + requested > limit:
            error = PromptTooLong(
                f"the prompt has {tokens} tokens and {requested} more were requested, "
                f"together {tokens + requested}; the limit is {limit}",
                hint="shorten the prompt, or lower max_tokens",
                prompt_tokens=tokens,
                requested_tokens=requested,
                limit=limit,
            )
            self._post(lambda: self._state.refuse(error), lambda: None)
            raise error
        self._post(lambda: self._enqueue(job), lambda: job.deliver(Failed(_stopped())))

    def cancel(self, job: Job) -> None:
        """End a job with `Cancelled` before the next forward pass; nothing if it has ended."""
        self._post(lambda: self._withdraw(job), lambda: None)

    def expect(self, interest: Interest, next_use: int | None, place: str = "") -> None:
        """Change what is known of a session's next use of its KV; does not wait for that."""
        self._post(lambda: self._state.cache.expect(interest, next_use, place), lambda: None)

    def call(self, action: Callable[[EngineState], T]) -> Future[T]:
        """Run `action` on the state, between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(action(self._state))
                except BaseException as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)

        self._post(run, lambda: future.set_exception(_stopped()))
        return future

    def audit(self) -> None:
        """Check every count and owner of the KV pool. Raises `AssertionError` on a breach."""
        self.call(audit).result()

    def stats(self) -> Stats:
        """The counters, and how things stand now."""
        state, tier = self._state, self._state.cache.tier
        return dataclasses.replace(
            state.stats,
            evicted_pages=state.cache.evicted,
            offloaded_pages=tier.saved if tier else 0,
            restored_pages=tier.restored if tier else 0,
            host_pages=tier.pages if tier else 0,
            free_host_pages=tier.free if tier else 0,
            running=len(state.running),
            queued=len(state.waiting),
            pages=state.pool.pages,
            free_pages=state.pool.free,
            cached_pages=state.pool.cached,
            pinned_pages=state.pins.locked,
        )

    def stop(self) -> None:
        """End all jobs with `Cancelled` and the thread. May be called twice."""
        with self._lock:
            self._stopping = True
            self._inbox.put(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.stop)

    def _post(self, command: Callable[[], None], refuse: Callable[[], None]) -> None:
        with self._lock:
            if not self._stopping:
                self._inbox.put(command)
                return
        refuse()

    # On the thread

    def _run(self) -> None:
        state = self._state
        try:
            while not self._stopping:
                self._read_inbox(wait=not state.running and not state.waiting)
                step(state)
        finally:  # however the thread ends, nobody waits for it
            with self._lock:
                self._stopping = True
            self._read_inbox(wait=False)
            for job in [*state.running, *state.waiting]:
                _obey(partial(state.cancel, job))

    def _read_inbox(self, wait: bool) -> None:
        while True:
            try:
                command = self._inbox.get(block=wait)
            except Empty:
                return
            wait = False
            _obey(command)

    def _enqueue(self, job: Job) -> None:
        try:
            self._queue(job)
        except Exception as error:  # noqa: BLE001 - reported to the job's owner and logged
            self._state.fail_unexpectedly([job], error)

    def _queue(self, job: Job) -> None:
        state = self._state
        free_places = max(0, state.config.max_running - len(state.running))
        if len(state.waiting) >= state.config.queue_limit + free_places:
            error = _overloaded(state)
            state.refuse(error)
            job.deliver(Failed(error))
            return
        state.enqueue(job)
        if len(state.waiting) > free_places:
            job.waits()

    def _withdraw(self, job: Job) -> None:
        if self._state.has(job):
            self._state.cancel(job)


def _obey(command: Callable[[], None]) -> None:
    """The thread belongs to all jobs: a command of one of them that fails may not end it."""
    try:
        command()
    except Exception:
        log.exception("a command to the engine failed")


def _stopped() -> Cancelled:
    return Cancelled("the engine was stopped", hint="open a new backend")


def _overloaded(state: EngineState) -> Overloaded:
    waiting = len(state.waiting)
    return Overloaded(
        f"{waiting} steps are waiting already, and the queue holds {state.config.queue_limit}",
        hint="try again later, or start fewer runs at once",
        waiting=waiting,
        retry_after_s=state.wait_estimate(),
    )
