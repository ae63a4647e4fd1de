"""One step of the engine: who leaves, who comes in, one forward pass, and what it led to.

What lives here: `step`, the order of the phases. What does not: the phases (`admission.py`,
`batching.py`, `completion.py`) and the thread that calls it (`engine.py`).
"""

from __future__ import annotations

import time

from phloem.runtime.engine.admission import admit, expire
from phloem.runtime.engine.batching import Plan, plan
from phloem.runtime.engine.completion import complete, complete_cached
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.memory import recover, shrink
from phloem.runtime.engine.state import EngineState, out_of_memory

__all__ = ["step"]


def step(state: EngineState) -> None:
    """Take every phase once. An unforeseen error ends the jobs it concerns, never the caller."""
    jobs: list[Job] | None = None
    try:
        expire(state)
        complete_cached(state, admit(state))
        while (work := plan(state)) is not None:
            jobs = list({id(entry.job): entry.job for entry in work.entries}.values())
            if _run(state, work):
                break
            jobs = None
    except Exception as error:  # noqa: BLE001 - reported to the jobs' owners and logged
        if jobs is None:
            jobs = [*state.running, *state.waiting]
        state.fail_unexpectedly([job for job in jobs if state.has(job)], error)


def _run(state: EngineState, work: Plan) -> bool:
    """One forward pass and what it leads to. False: there was no memory for it."""
    rows = work.batch.query_starts[-1]
    prompts = any(entry.job.prefilling for entry in work.entries)
    began = time.perf_counter()
    try:
        logits = state.decoder.forward(work.batch, state.pool.storage)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        shrink(state, rows, error)
        return False
    state.stats.passes += 1
    state.stats.rows += rows
    recover(state)
    complete(state, work, logits)
    if prompts:
        state.pace.measure(rows, 1e3 * (time.perf_counter() - began))
    return True
