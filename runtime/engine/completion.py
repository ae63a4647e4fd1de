"""The third phase of a step: from logits to tokens, and the end of what is complete.

What lives here: `complete` and `complete_cached`. What does not: the draw (`sampler.py`) and what
a token leads to (`generation.py`, `scoring.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from phloem.errors import PhloemError
from phloem.programs.protocol import TokenLogprob
from phloem.runtime.engine.batching import Entry, Plan
from phloem.runtime.engine.generation import Generation, LogprobOf
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.prefix import Prefix
from phloem.runtime.engine.sampler import Draw, sample
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.state import EngineState

__all__ = ["complete", "complete_cached"]


def complete(state: EngineState, plan: Plan, logits: torch.Tensor) -> None:
    """Take what a forward pass has computed. `logits` float32 [wanted rows, vocab]."""
    drawing: list[tuple[Generation, torch.Tensor]] = []
    at = 0
    for entry in plan.entries:
        wanted = entry.wanted
        rows = logits[at : at + wanted]
        at += wanted
        entry.seq.computed += entry.rows
        if isinstance(entry.job, Scoring):
            _guard(state, entry.job, _score, state, entry, rows)
        elif not entry.seq.pending and isinstance(entry.job, Generation) and wanted:
            drawing.append((entry.job, rows))
    _heal(state, drawing)
    _draw(state, drawing)
    for job in {id(entry.job): entry.job for entry in plan.entries}.values():
        if job in state.running:
            _guard(state, job, _settle, state, job)


def complete_cached(state: EngineState, admitted: list[Job]) -> None:
    """End the jobs that need no forward pass, because the cache has all their tokens."""
    for job in admitted:
        if not job.seq.pending:
            _guard(state, job, _settle, state, job)


def _guard(state: EngineState, job: Job, action: Callable[..., None], *args: object) -> None:
    """Run one job's part of the phase: what goes wrong in it ends this job only."""
    try:
        action(*args)
    except PhloemError as error:
        state.fail(job, error)
    except Exception as error:  # noqa: BLE001 - reported to the job's owner and logged
        state.fail_unexpectedly([job], error)


def _heal(state: EngineState, drawing: list[tuple[Generation, torch.Tensor]]) -> None:
    """Decide the borders; each has two rows, the one before the border's token and its own."""
    borders = [(job, rows) for job, rows in drawing if job.border is not None]
    _sample(state, borders, 0, Generation.border_draw, Generation.settle_border)


def _draw(state: EngineState, drawing: list[tuple[Generation, torch.Tensor]]) -> None:
    """Draw the next token of every job whose last row is computed."""
    ready = [
        (job, rows)
        for job, rows in drawing
        if job in state.running and job.finish is None and not job.seq.pending
    ]
    _sample(state, ready, -1, Generation.draw, Generation.take)


def _sample(
    state: EngineState,
    jobs: list[tuple[Generation, torch.Tensor]],
    row: int,
    draw_of: Callable[[Generation], Draw],
    take: Callable[[Generation, int, LogprobOf], None],
) -> None:
    draws: list[Draw] = []
    drawing: list[tuple[Generation, torch.Tensor]] = []

    def prepare(job: Generation, rows: torch.Tensor) -> None:
        draw = draw_of(job)
        if job.finish is None:
            draws.append(draw)
            drawing.append((job, rows))

    for job, rows in jobs:
        _guard(state, job, prepare, job, rows)
    if not drawing:
        return
    logits = torch.stack([rows[row] for _, rows in drawing])
    logits[:, state.vocabulary.known :] = -torch.inf
    tokens = sample(logits, draws)
    for (job, rows), token in zip(drawing, tokens, strict=True):
        _guard(state, job, take, job, token, _lookup(state, job, rows[row]))


def _lookup(state: EngineState, job: Generation, row: torch.Tensor) -> LogprobOf:
    """Looks up log-probabilities under the model itself: no temperature, mask or penalty."""
    count = job.params.logprobs
    if count is None:
        return None
    logprobs = torch.log_softmax(row, dim=-1)
    best = logprobs[: state.vocabulary.known].topk(count) if count else None
    text = state.vocabulary.text

    def of(token: int) -> TokenLogprob:
        top: tuple[tuple[int, str, float], ...] = ()
        if best is not None:
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            top = tuple((other, text(other), value) for other, value in pairs)
        return TokenLogprob(token, text(token), float(logprobs[token]), top)

    return of


def _score(state: EngineState, entry: Entry, rows: torch.Tensor) -> None:
    job, seq = entry.job, entry.seq
    assert isinstance(job, Scoring)
    if seq is not job.seq:
        job.take_branch(seq, rows)
        if not seq.pending:
            state.kv.publish(seq)
            state.kv.detach(seq, cold=True)
    elif not seq.pending:
        job.take_prefix(rows[-1])


def _settle(state: EngineState, job: Job) -> None:
    """Note the end of the prompt, show progress, and end the job if it is complete."""
    if job.prefilling:
        state.kv.publish(job.seq)
        if job.prompt_ready:
            job.clock.prefilled = time.monotonic()
    if not job.complete:
        job.progress()
        return
    job.conclude()
    if isinstance(job, Prefix):
        state.pin(job)
    else:
        state.leave(job)
    state.stats.finished += 1
