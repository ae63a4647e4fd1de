"""The second phase of a step: which rows go through the decoder together.

What lives here: `plan` and the making of a `ForwardBatch`. What does not: the forward pass.

Every job that generates gets its rows first (one, or a chunk of dictated tokens), then prompts
are computed in order of admission with what is left of `max_rows`, and, while others generate,
of the rows that can be computed within `inter_token_ms`: long prompts come in chunks, and
running streams go on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from phloem.runtime.engine.generation import Generation
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.memory import ensure_pages, make_room
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState
from phloem.runtime.model.batch import ForwardBatch

__all__ = ["Entry", "Plan", "plan"]

_SHORTEST_CHUNK = 16
"""Rows a prompt gets at least, however little time the streams allow."""


@dataclass(slots=True)
class Entry:
    """`rows` tokens of a sequence, of which the last `wanted` are asked for their logits.

    The last of the rows are the sequence's guesses, if it has any.
    """

    job: Job
    seq: Sequence
    rows: int

    @property
    def wanted(self) -> int:
        """Rows with logits."""
        end = self.seq.computed + self.rows
        return max(0, end - max(self.seq.logits_from, self.seq.computed))


@dataclass(slots=True)
class Plan:
    """One forward pass; logits come in the order of the entries."""

    entries: list[Entry]
    batch: ForwardBatch


def plan(state: EngineState) -> Plan | None:
    """The next pass, with pages for all its rows; None if there is nothing to compute."""
    entries: list[Entry] = []
    left = state.max_rows
    for job in sorted(state.running, key=lambda job: job.prefilling):
        if isinstance(job, Scoring) and not job.prefilling:
            _spread(state, job)
        if entries and job.prefilling and not entries[-1].job.prefilling:
            left = min(left, _chunk(state, state.max_rows - left))
        planned = 0
        for seq in job.sequences():
            rows = job.rows(seq, left) if job in state.running else 0
            if rows <= 0 or not _pages(state, job, seq, seq.computed + rows, planned > 0):
                continue
            if isinstance(job, Generation):
                rows += _guess(state, job, left - rows if rows == seq.pending else 0)
            entries.append(Entry(job, seq, rows))
            planned += 1
            left -= rows
    # Whoever had to give way for a later one drops out.
    entries = [entry for entry in entries if entry.job in state.running]
    return Plan(entries, forward_batch(state, entries)) if entries else None


def _guess(state: EngineState, job: Generation, left: int) -> int:
    """Have a job guess, within its share of the `left` rows and of the pages; returns its guesses.

    Nobody gives way for a guess: one page for each other job is left alone.
    """
    seq, streams = job.seq, len(state.running)
    job.guess((left - streams) // streams, streams)
    if seq.draft:
        end = len(seq.tokens) + len(seq.draft)
        room = state.pool.free + state.pool.cached - streams
        if state.kv.pages_for(end) - len(seq.pages) > room or not state.kv.grow(seq, end):
            seq.guess([])
    return len(seq.draft)


def _chunk(state: EngineState, streams: int) -> int:
    """Rows that prompts may have beside `streams` rows of jobs that generate."""
    budget = state.config.inter_token_ms
    if budget is None:
        return state.config.max_rows
    return max(_SHORTEST_CHUNK, state.pace.rows_within(budget) - streams)


def _pages(state: EngineState, job: Job, seq: Sequence, tokens: int, patient: bool) -> bool:
    """Whether `seq` has pages for `tokens` tokens; `patient`: it may also wait for a later pass."""
    if patient:
        return state.kv.grow(seq, tokens)
    return ensure_pages(state, job, seq, tokens)


def _spread(state: EngineState, job: Scoring) -> None:
    while job in state.running and not job.spread(state.kv):
        make_room(state, job)


def forward_batch(state: EngineState, entries: list[Entry]) -> ForwardBatch:
    """The decoder's view of the entries."""
    size = state.pool.page_size
    rows = np.array([entry.rows for entry in entries])
    wanted = np.array([entry.wanted for entry in entries])
    ends = np.array([entry.seq.computed + entry.rows for entry in entries])
    starts = np.concatenate(([0], np.cumsum(rows)))
    used = -(-ends // size)
    table = np.zeros((len(entries), int(used.max())), dtype=np.int64)
    for line, entry, pages in zip(table, entries, used.tolist(), strict=True):
        line[:pages] = np.frombuffer(entry.seq.pages, dtype=np.int64, count=pages)
    # Row r of an entry that begins with row `start` stands at position r - start + end - rows.
    positions = np.arange(starts[-1]) + np.repeat(ends - starts[1:], rows)
    owner = np.repeat(np.arange(len(entries)), rows)
    slots = table[owner, positions // size] * size + positions % size
    tokens = [token for entry in entries for token in _tokens(entry)]
    logit_rows = np.arange(wanted.sum()) + np.repeat(starts[1:] - np.cumsum(wanted), wanted)
    device = state.decoder.device

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64, copy=False)).to(device)

    return ForwardBatch(
        tokens=tensor(np.array(tokens)),
        positions=tensor(positions),
        slots=tensor(slots),
        query_starts=starts.tolist(),
        context_lens=ends.tolist(),
        pages=tensor(table),
        logit_rows=tensor(logit_rows),
    )


def _tokens(entry: Entry) -> list[int]:
    seq = entry.seq
    own = seq.tokens[seq.computed : seq.computed + entry.rows]
    return own + seq.draft if seq.draft else own
