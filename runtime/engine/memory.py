"""Memory for the next pass, and who gives way when there is none.

What lives here: `ensure_pages` and `make_room` for pages of the pool, `shrink` and `recover` for
the memory that a pass itself takes. What does not: eviction of cached pages (`radix_cache.py`
does that first, whenever a page is asked for).

When every page is locked, the running job that is cheapest to rebuild is suspended: the fewest
tokens that only it holds, of equals the youngest. Jobs only grow, so the one that is dearest to
rebuild always goes on, and nobody is admitted until one has ended: the engine can't thrash for
ever. A job that is alone and still lacks pages takes the pins' pages, and fails as the last
resort.

A pass that torch has no memory for is tried again with half its rows, down to a few, then with
fewer jobs; what it had written of its rows' KV is written again. The limit on rows stays low for
a while and grows back with passes that succeed.
"""

from __future__ import annotations

import logging

from phloem.errors import OutOfMemory
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState

__all__ = ["ensure_pages", "make_room", "recover", "shrink"]

log = logging.getLogger(__name__)

_FEWEST_ROWS = 2
"""What a pass must be able to have: a healed border needs the logits of two rows at once."""

_GOOD_PASSES = 16
"""Passes that succeed before the limit on rows is doubled."""


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


def shrink(state: EngineState, rows: int, cause: BaseException) -> None:
    """A pass of `rows` rows found no memory: change something, so that it can be tried again."""
    state.good_passes = 0
    state.stats.shrunk += 1
    log.warning("no memory for a pass of %d rows: %s", rows, cause)
    if rows > _FEWEST_ROWS:
        state.max_rows = max(_FEWEST_ROWS, rows // 2)
    elif len(state.running) > 1:
        state.suspend(min(state.running, key=lambda job: _rebuild_order(state, job)))
    else:
        error = OutOfMemory(
            f"the device has no memory for a pass of {rows} rows",
            hint="free memory, or give the engine a smaller pool (kv_tokens)",
        )
        error.__cause__ = cause
        state.fail(state.running[0], error)


def recover(state: EngineState) -> None:
    """A pass succeeded: let the limit on rows grow back."""
    state.good_passes += 1
    if state.max_rows < state.config.max_rows and state.good_passes >= _GOOD_PASSES:
        state.good_passes = 0
        state.max_rows = min(2 * state.max_rows, state.config.max_rows)


def _rebuild_order(state: EngineState, job: Job) -> tuple[bool, int, float]:
    """Jobs that would free nothing last; then by cost; then the youngest first."""
    own = sum(state.pool.holders[page] == 1 for seq in job.sequences() for page in seq.pages)
    return (own == 0, own, -job.clock.arrived)
