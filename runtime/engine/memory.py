"""Pages for the next pass, and who gives way when there are none.

What lives here: `ensure_pages`. What does not: eviction of cached pages (`radix_cache.py` does
that first, whenever a page is asked for).

When every page is locked, the running job that is cheapest to rebuild is suspended: the fewest
tokens that only it holds, of equals the youngest. Jobs only grow, so the one that is dearest to
rebuild always goes on, and nobody is admitted until one has ended: the engine can't thrash for
ever. A job that is alone and still lacks pages takes the pins' pages, and fails as the last
resort.
"""

from __future__ import annotations

from phloem.errors import OutOfMemory
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState

__all__ = ["ensure_pages", "make_room"]


def ensure_pages(state: EngineState, job: Job, seq: Sequence, tokens: int) -> bool:
    """Pages for the first `tokens` tokens of `seq`. False: `job` is not running any more."""
    while not state.kv.grow(seq, tokens):
        make_room(state, job)
        if job not in state.running:
            return False
    return True


def make_room(state: EngineState, job: Job) -> None:
    """Suspend a job, or drop a pin, or fail `job`, so that some page can be had."""
    if len(state.running) > 1:
        state.suspend(min(state.running, key=lambda other: _rebuild_order(state, other)))
        return
    if state.pins.drop_oldest():
        return
    state.fail(
        job,
        OutOfMemory(
            f"the step needs more than the KV pool of "
            f"{state.pool.pages * state.pool.page_size} tokens",
            hint="ask for fewer tokens or choices, or give the engine a larger pool (kv_tokens)",
        ),
    )


def _rebuild_order(state: EngineState, job: Job) -> tuple[bool, int, float]:
    """Jobs that would free nothing last; then by cost; then the youngest first."""
    own = sum(state.pool.holders[page] == 1 for seq in job.sequences() for page in seq.pages)
    return (own == 0, own, -job.clock.arrived)
