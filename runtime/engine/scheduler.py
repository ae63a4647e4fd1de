"""One step of the engine: who leaves, who comes in, one forward pass, and what it led to.

What lives here: `step`, the order of the phases. What does not: the phases (`admission.py`,
`batching.py`, `completion.py`) and the thread that calls it (`engine.py`).
"""

from __future__ import annotations

import time

from phloem.runtime.engine.admission import admit, expire
from phloem.runtime.engine.batching import plan
from phloem.runtime.engine.completion import complete, complete_cached
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.state import EngineState

__all__ = ["step"]


def step(state: EngineState) -> None:
    """Take every phase once. An unforeseen error ends the jobs it concerns, never the caller."""
    jobs: list[Job] | None = None
    try:
        expire(state)
        complete_cached(state, admit(state))
        work = plan(state)
        if work is None:
            return
        jobs = list({id(entry.job): entry.job for entry in work.entries}.values())
        state.stats.passes += 1
        state.stats.rows += len(work.batch.tokens)
        prompts = any(entry.job.prefilling for entry in work.entries)
        began = time.perf_counter()
        logits = state.decoder.forward(work.batch, state.pool.storage)
        complete(state, work, logits)
        if prompts:
            ms = 1e3 * (time.perf_counter() - began)
            state.pace.measure(len(work.batch.tokens), ms)
    except Exception as error:  # noqa: BLE001 - reported to the jobs' owners and logged
        if jobs is None:
            jobs = [*state.running, *state.waiting]
        state.fail_unexpectedly([job for job in jobs if state.has(job)], error)
