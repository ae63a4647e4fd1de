"""The way to an engine in this process: work becomes jobs.

What lives here: `LocalLane` and the `Services` that all lanes of an engine share. What does not:
the engine (`engine/`) and the sessions (`embedded_session.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from phloem.errors import Cancelled, EngineError, PhloemError
from phloem.grammar.spec import Compiler, Constraint
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.constrained import Constrained
from phloem.runtime.engine.engine import Engine
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.generation import Generation
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.messages import Computed, Deliver, Failed
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.params import make_output_text
from phloem.runtime.engine.prefix import Prefix
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.sequence import Sequence as TokenSequence
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.engine.work import Flush, Generate, Pin, Score, Work
from phloem.runtime.lane import Cancel

__all__ = ["LocalLane", "Services"]

log = logging.getLogger(__name__)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="phloem-grammar")


@dataclass(frozen=True, slots=True)
class Services:
    """What all lanes to an engine share. Constraints are compiled on `threads`: it blocks."""

    engine: Engine
    vocabulary: Vocabulary
    compiler: Compiler
    settings: EngineConfig
    threads: ThreadPoolExecutor = field(default_factory=_threads)

    def stop(self) -> None:
        """End all jobs with `Cancelled`, and the engine."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.engine.stop()


class LocalLane:
    """See `Lane`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._interest = Interest()

    def another(self) -> LocalLane:
        """See `Lane`."""
        return LocalLane(self._services)

    def expect(self, next_use: int | None, place: str = "") -> None:
        """See `Lane`. Decides, with `eviction="program"`, which KV is given up first."""
        self._services.engine.expect(self._interest, next_use, place)

    def submit(self, work: Work, deliver: Deliver) -> Cancel:
        """See `Lane`."""
        engine = self._services.engine
        if isinstance(work, Flush):
            flushed = engine.call(lambda state: state.flush())
            flushed.add_done_callback(lambda done: deliver(_flushed(done)))
            return lambda: None
        start = _Start(engine, deliver)
        if isinstance(work, Generate) and work.constraint is not None:
            try:
                self._services.threads.submit(start.run, lambda: self._job(work, deliver))
            except RuntimeError:  # the threads are shut down
                deliver(Failed(Cancelled("the engine was stopped", hint="open a new backend")))
        else:
            start.run(lambda: self._job(work, deliver))
        return start.cancel

    def _job(self, work: Generate | Score | Pin, deliver: Deliver) -> Job:
        match work:
            case Generate():
                return self._generation(work, deliver)
            case Score():
                return Scoring(
                    TokenSequence(work.place.namespace, list(work.tokens), len(work.tokens) - 1),
                    deliver,
                    choices=work.choices,
                    bare=work.bare,
                    deadline=work.place.deadline,
                    priority=work.place.priority,
                    interest=self._interest,
                )
            case Pin():
                tokens = list(work.tokens)
                return Prefix(TokenSequence(work.namespace, tokens, len(tokens)), deliver)

    def _generation(self, work: Generate, deliver: Deliver) -> Generation:
        vocabulary, settings = self._services.vocabulary, self._services.settings
        tokens, place = work.tokens, work.place
        heals = work.heal and len(tokens) > 1 and work.params.max_tokens > 0
        return Generation(
            TokenSequence(place.namespace, list(tokens), len(tokens) - 1),
            deliver,
            params=work.params,
            vocabulary=vocabulary,
            noise=Noise(work.seed, place.branch),
            text=make_output_text(work.params),
            constrained=self._constrained(work.constraint),
            border=vocabulary.table.border(tokens[-1]) if heals else None,
            jump=settings.jump_forward,
            drafts=settings.drafts,
            deadline=place.deadline,
            priority=place.priority,
            interest=self._interest,
        )

    def _constrained(self, constraint: Constraint | None) -> Constrained | None:
        if constraint is None:
            return None
        matcher = self._services.compiler.matcher(constraint)
        closes = constraint.finish == "force"
        return Constrained(matcher, self._services.vocabulary, closes=closes)


class _Start:
    """From work to a job in the engine's queue; may be cancelled on the way."""

    def __init__(self, engine: Engine, deliver: Deliver) -> None:
        self._engine = engine
        self._deliver = deliver
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._over = False

    def run(self, make: Callable[[], Job]) -> None:
        """Make the job and queue it; what goes wrong is delivered."""
        try:
            job = make()
            with self._lock:
                if not self._over:
                    self._job = job
                    self._engine.submit(job)
        except PhloemError as error:
            self._fail(error)
        except Exception as error:
            # Nobody else would tell the owner, who waits.
            log.exception("a step could not be started")
            self._fail(EngineError(f"the step could not be started: {error!r}"))

    def cancel(self) -> None:
        """See `Cancel`."""
        with self._lock:
            job = self._job
        if job is not None:
            self._engine.cancel(job)
        else:
            self._fail(Cancelled("the step was cancelled"))

    def _fail(self, error: PhloemError) -> None:
        with self._lock:
            over, self._over = self._over, True
        if not over:
            self._deliver(Failed(error))


def _flushed(done: Future[None]) -> Computed | Failed:
    error = done.exception()
    if error is None:
        return Computed(0)
    return Failed(error if isinstance(error, PhloemError) else EngineError(repr(error)))
