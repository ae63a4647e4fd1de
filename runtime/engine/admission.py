"""The first phase of a step: who leaves the queue.

What lives here: `admit` and `expire`. What does not: memory while running (`memory.py`).

A job is admitted when its tokens fit beside what the running jobs still need for theirs. A
job whose prompt begins like one that is being computed right now waits for it, so that tokens
that arrive together are computed once.
"""

from __future__ import annotations

import time

from phloem.errors import DeadlineExceeded, OutOfMemory
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.radix_cache import common_prefix
from phloem.runtime.engine.state import EngineState

__all__ = ["admit", "expire"]


def expire(state: EngineState) -> None:
    """End jobs that were cancelled or whose deadline has passed, queued or running."""
    now = time.monotonic()
    for job in [*state.waiting, *state.running]:
        if job.cancelled:
            state.cancel(job)
        elif job.deadline is not None and now >= job.deadline:
            waited = now - job.clock.arrived
            state.fail(
                job,
                DeadlineExceeded(
                    f"the deadline passed {waited:.2f} s after the step arrived",
                    hint="allow more time, or ask for fewer tokens",
                    waited_s=waited,
                ),
            )


def admit(state: EngineState) -> list[Job]:
    """Move jobs from the queue to the running ones, by priority, then by arrival."""
    admitted: list[Job] = []
    for job in sorted(state.waiting, key=_order):
        if len(state.running) >= state.config.max_running:
            break
        if state.memory_tight and state.running:
            break
        if _computed_by_another(state, job):
            continue
        if not _fits(state, job):
            if not state.running:
                _make_room(state, job)
            break
        _start(state, job)
        admitted.append(job)
    return admitted


def _order(job: Job) -> tuple[int, float]:
    return (-job.priority, job.clock.arrived)


def _start(state: EngineState, job: Job) -> None:
    state.waiting.remove(job)
    state.running.append(job)
    state.kv.attach(job.seq)
    if job.clock.started is None:
        job.clock.started = time.monotonic()
        job.reused = min(job.seq.computed, job.prompt)


def _fits(state: EngineState, job: Job) -> bool:
    """Whether the job's tokens fit beside what the running jobs' present tokens need."""
    promised = sum(
        state.kv.pages_for(len(seq.tokens)) - len(seq.pages)
        for running in state.running
        for seq in running.sequences()
    )
    room = state.pool.free + state.pool.cached - promised
    return state.kv.pages_needed(job.seq) <= room


def _make_room(state: EngineState, job: Job) -> None:
    """Nothing runs, yet the job does not fit: pins must give way, or it never fits."""
    if state.pins.drop_oldest():
        return
    state.fail(
        job,
        OutOfMemory(
            f"{len(job.seq.tokens)} tokens do not fit the KV pool of "
            f"{state.pool.pages * state.pool.page_size} tokens",
            hint="shorten the prompt, or give the engine a larger pool (kv_tokens)",
        ),
    )


def _computed_by_another(state: EngineState, job: Job) -> bool:
    """Whether a running job is about to compute tokens that this one could then reuse."""
    limit = min(job.seq.logits_from, len(job.seq.tokens))
    others = [
        other.seq
        for other in state.running
        if other.prefilling and other.seq.namespace == job.seq.namespace
    ]
    if not others or not state.config.prefix_cache:
        return False
    cached = state.kv.cached_prefix(job.seq)
    wanted = job.seq.tokens[:limit]
    return any(common_prefix(wanted, seq.tokens) > cached for seq in others)
