"""One step of the engine: who leaves, who comes in, one forward pass, and what it led to.

What lives here: `step`, the order of the phases. What does not: the phases (`admission.py`,
`batching.py`, `completion.py`) and the thread that calls it (`engine.py`).
"""

from __future__ import annotations

from phloem.runtime.engine.admission import admit, expire
from phloem.runtime.engine.batching import plan
from phloem.runtime.engine.completion import complete, complete_cached
from phloem.runtime.engine.state import EngineState

__all__ = ["step"]


def step(state: EngineState) -> None:
    """Take every phase once. An unforeseen error ends the jobs it concerns, never the caller."""
    jobs = [*state.running, *state.waiting]
    try:
        expire(state)
        complete_cached(state, admit(state))
        work = plan(state)
        if work is None:
            return
        jobs = list({id(entry.job): entry.job for entry in work.entries}.values())
        state.stats.passes += 1
        state.stats.rows += len(work.batch.tokens)
        logits = state.decoder.forward(work.batch, state.pool.storage)
        complete(state, work, logits)
    except Exception as error:  # noqa: BLE001 - reported to the jobs' owners and logged
        state.fail_unexpectedly([job for job in jobs if state.has(job)], error)
