"""What the phases of the scheduler share.

What lives here: `EngineState` with the few ways a job leaves it. What does not: the settings
(`config.py`), the phases (`admission.py`, `batching.py`, `completion.py`) and the thread
(`engine.py`).
"""

from __future__ import annotations

import logging
import time

import torch

from phloem.errors import Cancelled, EngineError, OutOfMemory, PhloemError
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.host_tier import host_tier
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.messages import Failed
from phloem.runtime.engine.pace import Pace
from phloem.runtime.engine.prefix import Pins, Prefix
from phloem.runtime.engine.radix_cache import RadixCache
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.sequence_kv import SequenceKV
from phloem.runtime.engine.stats import Stats
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.engine.waiting import WaitingJobs
from phloem.runtime.model.batch import Decoder

__all__ = ["EngineState", "out_of_memory"]

log = logging.getLogger(__name__)


class EngineState:
    """The decoder, its memory, and the jobs. Touched by the engine's thread only."""

    def __init__(self, decoder: Decoder, vocabulary: Vocabulary, config: EngineConfig) -> None:
        assert config.kv_tokens is not None, "whoever makes an engine settles the default"
        self.decoder = decoder
        self.vocabulary = vocabulary
        self.config = config
        pages = config.kv_tokens // config.page_size
        storage = decoder.new_kv(pages, config.page_size)
        if config.prefault:
            storage.prefault()
        self.pool = KVPool(storage, pages)
        self.cache = RadixCache(
            self.pool,
            hints=config.eviction == "program",
            tier=host_tier(
                decoder,
                self.pool.storage,
                (config.host_tokens or 0) // config.page_size,
                config.restore_from,
            ),
        )
        self.kv = SequenceKV(self.pool, self.cache, sharing=config.prefix_cache)
        self.pins = Pins(self.kv, int(pages * config.pinned_share))
        self.waiting = WaitingJobs(lambda job: self.kv.cached_prefix(job.seq), config.overtakes)
        self.running: list[Job] = []
        self.stats = Stats()
        self.max_rows = config.max_rows
        """Rows a pass may have now: fewer than configured after one that found no memory."""
        self.good_passes = 0
        """Passes since `max_rows` was changed."""
        self.pace = Pace()
        self.memory_tight = False
        """A job was suspended and none has left since: nobody is admitted."""
        self.recent_job_s = 1.0
        """Seconds from start to end of a job, averaged with more weight on late ones."""

    @property
    def max_tokens(self) -> int:
        """Tokens the longest possible sequence may have."""
        return min(self.decoder.max_positions, self.pool.pages * self.pool.page_size)

    def has(self, job: Job) -> bool:
        """Whether the job is queued or running."""
        return job in self.waiting or job in self.running

    def wait_estimate(self) -> float:
        """Seconds until a newcomer may be served: what a job took lately, times those before."""
        turns = 1 + len(self.waiting) / self.config.max_running
        return round(turns * self.recent_job_s, 1)

    def enqueue(self, job: Job) -> None:
        """Let a job wait; what is cached of it is not given up lightly."""
        self.cache.resume(job.interest)
        self.waiting.add(job)

    def leave(self, job: Job) -> None:
        """Take a job out, wherever it stands, if it came in; what it computed stays cached."""
        job.interest.queued = False
        if job in self.waiting:
            self.cache.settle(job.interest, job.interest.node)
            self.waiting.remove(job)
        elif job in self.running:
            self._leave_running(job)
        if job.clock.started is not None:
            self.stats.usage += job.usage()

    def _leave_running(self, job: Job) -> None:
        self.running.remove(job)
        self.memory_tight = False
        for seq in job.sequences():
            self.kv.publish(seq)
            last = self.kv.detach(seq, cold=seq is not job.seq)
            if seq is job.seq:
                self.cache.settle(job.interest, last)
        started = job.clock.started or job.clock.arrived
        self.recent_job_s += 0.1 * (time.monotonic() - started - self.recent_job_s)

    def pin(self, job: Prefix) -> None:
        """Take a computed prefix out of the running jobs; its pages stay locked."""
        self.stats.usage += job.usage()
        self.running.remove(job)
        self.pins.add(job.seq)

    def cancel(self, job: Job) -> None:
        """End a job because its owner wants that."""
        self.leave(job)
        self.stats.cancelled += 1
        self.stats.errors["Cancelled"] += 1
        job.deliver(Failed(Cancelled("the step was cancelled")))

    def fail(self, job: Job, error: PhloemError) -> None:
        """End a job with an error."""
        self.leave(job)
        self.refuse(error)
        job.deliver(Failed(error))

    def refuse(self, error: PhloemError) -> None:
        """Count an error, and log it."""
        self.stats.failed += 1
        self.stats.errors[type(error).__name__] += 1
        log.info("a step failed: %s: %s", type(error).__name__, error)

    def fail_unexpectedly(self, jobs: list[Job], cause: Exception) -> None:
        """End jobs because of an error that nobody foresaw; the others go on."""
        log.error("a step failed; %d jobs end with it", len(jobs), exc_info=cause)
        for job in jobs:
            error: PhloemError
            if out_of_memory(cause):
                error = OutOfMemory(
                    f"the device has no memory left: {cause}",
                    hint="free memory, or give the engine a smaller pool (kv_tokens)",
                )
            else:
                error = EngineError(
                    f"the engine failed in this step: {type(cause).__name__}: {cause}",
                    hint="the engine goes on; if it happens again, please report it with the log",
                )
            error.__cause__ = cause
            self.fail(job, error)

    def flush(self) -> None:
        """Give up the pins and every cached page that nobody holds."""
        while self.pins.drop_oldest():
            pass
        self.cache.flush()

    def suspend(self, job: Job) -> None:
        """Give a running job's pages back, keep its tokens, and let it wait to go on."""
        for seq in job.sequences():
            self.kv.publish(seq)
            last = self.kv.detach(seq)
            if seq is job.seq:
                self.cache.settle(job.interest, last)
        if isinstance(job, Scoring):
            job.restart()
        self.running.remove(job)
        self.enqueue(job)
        self.memory_tight = True
        self.stats.suspended += 1


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. torch has a class for that on devices, and a text on CPUs."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
