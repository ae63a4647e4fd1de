"""The third phase of a step: from logits to tokens, and the end of what is complete.

What lives here: `complete` and `complete_cached`. What does not: the draw (`sampler.py`) and what
a token leads to (`generation.py`, `scoring.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from phloem.errors import PhloemError
from phloem.programs.protocol import TokenLogprob
from phloem.runtime.engine.batching import Entry, Plan
from phloem.runtime.engine.generation import Generation, LogprobOf
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.memory import shrink
from phloem.runtime.engine.prefix import Prefix
from phloem.runtime.engine.sampler import NO_TOKEN, Draw, Likeliest, no_numbers, sample
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.state import EngineState, out_of_memory

__all__ = ["complete", "complete_cached"]


def complete(state: EngineState, plan: Plan, logits: torch.Tensor) -> None:
    """Take what a forward pass has computed. `logits` float32 [wanted rows, vocab]."""
    ends: list[tuple[Generation, int]] = []
    at = 0
    for entry in plan.entries:
        wanted = entry.wanted
        at += wanted
        guesses = len(entry.seq.draft)
        entry.seq.computed += entry.rows - guesses
        if isinstance(entry.job, Scoring):
            _guard(state, entry.job, _score, state, entry, logits[at - wanted : at])
        elif not entry.seq.pending and isinstance(entry.job, Generation) and wanted:
            ends.append((entry.job, at - 1 - guesses))
    wider = state.decoder.vocab_size > state.vocabulary.size
    known = logits[:, : state.vocabulary.size] if wider else logits
    rows = _Rows(logits, known, Likeliest(known, plan.batch.likeliest))
    _heal(state, rows, ends)
    _draw(state, rows, ends)
    now = time.monotonic()
    for job in {id(entry.job): entry.job for entry in plan.entries}.values():
        if isinstance(job, Generation):
            _observe(state, job, now)
        if job in state.running:
            _guard(state, job, _settle, state, job)


def _observe(state: EngineState, job: Generation, now: float) -> None:
    """Count the time to a job's new tokens."""
    clock, new = job.clock, job.generated - job.observed
    if not new:
        return
    if clock.latest is None:
        state.stats.first_token_s.observe(now - clock.arrived)
    else:
        state.stats.inter_token_s.observe((now - clock.latest) / new, new)
    clock.latest, job.observed = now, job.generated


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


@dataclass(frozen=True, slots=True)
class _Rows:
    """The logits of a pass. A row is used up by its draw."""

    logits: torch.Tensor
    known: torch.Tensor
    """Of the tokens that the tokenizer knows: models may have more."""
    likeliest: Likeliest

    def tokens(self, rows: list[int], draws: list[Draw]) -> list[int]:
        """What each draw gives; the rows ascend."""
        tokens = [self.likeliest.of(row, draw) for row, draw in zip(rows, draws, strict=True)]
        left = [i for i, token in enumerate(tokens) if token is None]
        if left:
            some = self._some([rows[i] for i in left])
            for i, token in zip(left, sample(some, [draws[i] for i in left]), strict=True):
                tokens[i] = token
        return [token for token in tokens if token is not None]

    def _some(self, rows: list[int]) -> torch.Tensor:
        """Without a copy where the rows follow each other."""
        first, last = rows[0], rows[-1] + 1
        if last - first == len(rows):
            return self.known[first:last]
        return self.known[torch.tensor(rows, device=self.known.device)]


def _heal(state: EngineState, rows: _Rows, ends: list[tuple[Generation, int]]) -> None:
    """Decide the borders, from the row before the last of each."""
    borders = [(job, row - 1) for job, row in ends if job.border is not None]
    if borders:
        _sample(state, rows, borders, Generation.border_draw, Generation.settle_border)


def _draw(state: EngineState, rows: _Rows, ends: list[tuple[Generation, int]]) -> None:
    """Draw the next token of every job whose last row is computed.

    Where that token is what was guessed, the row of the guess gives the next one, and so on.
    """
    ready = [
        (job, row)
        for job, row in ends
        if job in state.running and job.finish is None and not job.seq.pending
    ]
    while ready:
        _sample(state, rows, ready, Generation.draw, Generation.take)
        ready = [(job, row + grown) for job, row in ready if (grown := _confirmed(state, job))]


def _confirmed(state: EngineState, job: Generation) -> int:
    """How many rows further the row of the job's last token is; 0 if it has none yet."""
    before = job.seq.computed
    if job not in state.running or not job.seq.draft or not job.confirm():
        return 0
    return job.seq.computed - before


def _sample(
    state: EngineState,
    rows: _Rows,
    jobs: list[tuple[Generation, int]],
    draw_of: Callable[[Generation], Draw],
    take: Callable[[Generation, int, LogprobOf], None],
) -> None:
    """Draw a token for each job from its row.

    Without memory for that nobody has drawn: the rows are computed again, in a smaller pass.
    """
    drawing: list[Generation] = []
    draws: list[Draw] = []
    places: list[int] = []

    def prepare(job: Generation, row: int) -> None:
        draw = draw_of(job)
        if job.finish is None:
            drawing.append(job)
            draws.append(draw)
            places.append(row)

    for job, row in jobs:
        _guard(state, job, prepare, job, row)
    if not drawing:
        return
    try:
        lookups = [
            _lookup(state, job, rows.logits, row) for job, row in zip(drawing, places, strict=True)
        ]
        tokens = rows.tokens(places, draws)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        for job in drawing:
            job.seq.guess([])
            job.seq.computed = job.seq.logits_from
        shrink(state, len(drawing), error)
        return
    for job, lookup, token in zip(drawing, lookups, tokens, strict=True):
        if token == NO_TOKEN:
            state.fail(job, no_numbers())
        else:
            _guard(state, job, take, job, token, lookup)


def _lookup(state: EngineState, job: Generation, logits: torch.Tensor, row: int) -> LogprobOf:
    """Looks up log-probabilities under the model itself: no temperature, mask or penalty."""
    count = job.params.logprobs
    if count is None:
        return None
    logprobs = torch.log_softmax(logits[row], dim=-1)
    best = logprobs[: state.vocabulary.size].topk(count) if count else None
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
    try:
        if seq is not job.seq:
            job.take_branch(seq, rows)
        elif not seq.pending:
            job.take_prefix(rows[-1])
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        seq.computed -= entry.rows
        shrink(state, entry.rows, error)
        return
    if seq is not job.seq and not seq.pending:
        state.kv.publish(seq)
        state.kv.detach(seq, cold=True)


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
