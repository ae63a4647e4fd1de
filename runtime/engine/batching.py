"""The second phase of a step: which rows go through the decoder together.

What lives here: `plan` and the making of a `ForwardBatch`. What does not: the forward pass.

Every job that generates gets its rows first (one, or a chunk of dictated tokens), then prompts
are computed in order of admission with what is left of `max_rows`, and, while others generate,
of the rows that can be computed within `inter_token_ms`: long prompts come in chunks, and
running streams go on meanwhile.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

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
    """The decoder's view of the entries.

    Runs between two passes, when the weights have just driven everything else out of the CPU's
    caches: few different calls cost less than few operations.
    """
    size = state.pool.page_size
    used = [-(-(entry.seq.computed + entry.rows) // size) for entry in entries]
    width = max(used)
    tokens, positions, slots, logit_rows, pages = (array("q") for _ in range(5))
    starts, ends = [0], []
    for entry, count in zip(entries, used, strict=True):
        seq, end = entry.seq, entry.seq.computed + entry.rows
        tokens.extend(_tokens(entry))
        positions.extend(range(seq.computed, end))
        for page in range(seq.computed // size, count):
            shift = (seq.pages[page] - page) * size
            first, last = max(seq.computed, page * size), min(end, (page + 1) * size)
            slots.extend(range(shift + first, shift + last))
        logit_rows.extend(range(len(tokens) - entry.wanted, len(tokens)))
        pages.extend(seq.pages[:count])
        pages.extend([0] * (width - count))
        starts.append(len(tokens))
        ends.append(end)
    fields = (tokens, positions, slots, logit_rows, pages)
    # One copy to the device.
    packed = torch.frombuffer(sum(fields, array("q")), dtype=torch.int64).to(state.decoder.device)
    parts = packed.split_with_sizes([len(field) for field in fields])
    return ForwardBatch(
        tokens=parts[0],
        positions=parts[1],
        slots=parts[2],
        query_starts=starts,
        context_lens=ends,
        pages=parts[4].view(len(entries), width),
        logit_rows=parts[3],
    )


def _tokens(entry: Entry) -> list[int]:
    seq = entry.seq
    own = seq.tokens[seq.computed : seq.computed + entry.rows]
    return own + seq.draft if seq.draft else own
