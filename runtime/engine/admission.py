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
from phloem.runtime.engine.state import EngineState
from phloem.runtime.engine.tokens import common_prefix

__all__ = ["admit", "expire"]


def expire(state: EngineState) -> None:
    """End jobs whose deadline has passed, queued or running."""
    now = time.monotonic()
    late = state.waiting.expired(now)
    late += [job for job in state.running if job.deadline is not None and now >= job.deadline]
    for job in late:
        waited = now - job.clock.arrived
        job.tell()
        state.fail(
            job,
            DeadlineExceeded(
                f"the deadline passed {waited:.2f} s after the step arrived",
                hint="allow more time, or ask for fewer tokens",
                waited_s=waited,
            ),
        )


def admit(state: EngineState) -> list[Job]:
    """Move jobs from the queue to the running ones, in the queue's order.

    Looks at no more jobs than can run together, whatever waits.
    """
    admitted: list[Job] = []
    if not state.waiting or len(state.running) >= state.config.max_running:
        return admitted
    state.waiting.refresh(lambda other: other.prefilling and other in state.running)
    for _ in range(2 * state.config.max_running):
        if len(state.running) >= state.config.max_running:
            break
        job = state.waiting.first()
        if job is None or (state.memory_tight and state.running):
            break
        other = _computing_for(state, job)
        if other is not None:
            state.waiting.put_aside(job, other)
        elif _fits(state, job):
            _start(state, job)
            admitted.append(job)
        elif state.running:
            break
        else:
            _make_room(state, job)
            break
    return admitted


def _start(state: EngineState, job: Job) -> None:
    state.waiting.serve(job)
    state.running.append(job)
    found = state.kv.attach(job.seq)
    job.interest.queued = False
    state.cache.begin(job.interest, found, job.seq.tokens)
    if job.clock.started is None:
        job.clock.started = time.monotonic()
        state.stats.queue_s.observe(job.clock.started - job.clock.arrived)
        job.reused = min(job.seq.computed, job.prompt)


def _fits(state: EngineState, job: Job) -> bool:
    """Whether the job's tokens fit beside what the running jobs' present tokens need."""
    promised = sum(
        max(0, state.kv.pages_for(len(seq.tokens)) - len(seq.pages))
        for running in state.running
        for seq in running.sequences()
    )
    room = state.pool.free + state.pool.cached - promised
    if state.kv.pages_for(len(job.seq.tokens)) <= room:  # whatever is cached
        return True
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


def _computing_for(state: EngineState, job: Job) -> Job | None:
    """A running job that is about to compute tokens that `job` could then reuse."""
    if not state.config.prefix_cache:
        return None
    others = [
        other
        for other in state.running
        if other.prefilling and other.seq.namespace == job.seq.namespace
    ]
    if not others:
        return None
    cached = state.kv.cached_prefix(job.seq)
    wanted = job.seq.tokens[: min(job.seq.logits_from, len(job.seq.tokens))]
    return next((o for o in others if common_prefix(wanted, o.seq.tokens) > cached), None)
