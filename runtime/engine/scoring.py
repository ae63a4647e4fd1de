"""Scoring choices: log-probabilities of several continuations of one prefix.

What lives here: `Scoring`. What does not: the rule that picks a winner (the program's).

The prefix is computed (or found in the cache) once. The row of its last token gives the first
token of every choice; what remains of the choices goes through the decoder together, each on a
branch of the prefix. A choice's last token need not be computed, so choices of one token cost
no row at all. What was computed stays in the cache, ready for the winner's text, as the first
to be evicted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch

from phloem.programs.protocol import ScoredChoice, Usage
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.messages import Deliver, Scored
from phloem.runtime.engine.sampler import no_numbers
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.sequence_kv import SequenceKV
from phloem.runtime.engine.tokens import Choice, common_prefix

__all__ = ["Scoring"]


@dataclass(slots=True)
class _Branch:
    """One run of tokens to be scored: `tokens` after the prefix, or after nothing."""

    tokens: list[int]
    bare: bool
    logprobs: list[float] = field(default_factory=list)
    best: list[tuple[int, float]] = field(default_factory=list)
    seq: Sequence | None = None

    @property
    def missing(self) -> int:
        """Tokens that have no log-probability yet."""
        return len(self.tokens) - len(self.logprobs) - self.bare


class Scoring(Job):
    """One `Session.score`. `bare` also scores each choice with nothing before it."""

    kind = "score"

    def __init__(
        self,
        seq: Sequence,
        deliver: Deliver,
        *,
        choices: list[Choice],
        bare: bool = False,
        deadline: float | None = None,
        priority: int = 0,
        interest: Interest | None = None,
    ) -> None:
        super().__init__(seq, deliver, deadline=deadline, priority=priority, interest=interest)
        self._choices = choices
        self._given = [_Branch(choice.tokens, False) for choice in choices]
        self._bare = [_Branch(choice.tokens, True) for choice in choices if bare]
        self._rows = 0

    def requested(self) -> int:
        """The longest choice."""
        return max((len(choice.tokens) for choice in self._choices), default=0)

    def sequences(self) -> list[Sequence]:
        """The prefix, and the branches that have pages."""
        return [self.seq, *(branch.seq for branch in self._branches() if branch.seq is not None)]

    @property
    def complete(self) -> bool:
        """Whether every choice has its numbers."""
        return not self.prefilling and not any(branch.missing > 0 for branch in self._branches())

    def spread(self, kv: SequenceKV) -> bool:
        """Make sequences of the branches still to be computed, as memory allows.

        False: there are some, and no memory even for one.
        """
        for branch in self._branches():
            if branch.missing > 0 and branch.seq is None:
                branch.seq = self._sequence(branch, kv)
                if branch.seq is None:
                    return len(self.sequences()) > 1
        return True

    def _sequence(self, branch: _Branch, kv: SequenceKV) -> Sequence | None:
        fed = branch.tokens[:-1]
        if not branch.bare:
            return kv.branch(self.seq, fed, self.seq.computed)
        seq = Sequence(self.seq.namespace, list(fed), 0)
        kv.attach(seq)
        return seq

    def take_prefix(self, logits: torch.Tensor) -> None:
        """The prefix's last row [vocab] gives every choice's first token."""
        row = torch.log_softmax(logits, dim=-1)
        best = int(row.argmax())
        if row[best].isnan():
            raise no_numbers()
        for branch in self._given:
            if branch.tokens:
                branch.logprobs.append(float(row[branch.tokens[0]]))
                branch.best.append((best, float(row[best])))

    def take_branch(self, seq: Sequence, logits: torch.Tensor) -> None:
        """Rows [n, vocab] of a branch give its next n tokens."""
        branch = next(branch for branch in self._branches() if branch.seq is seq)
        rows = torch.log_softmax(logits, dim=-1)
        done = len(branch.logprobs) + branch.bare
        wanted = torch.tensor(branch.tokens[done : done + len(rows)], device=rows.device)
        found = rows.gather(1, wanted[:, None])[:, 0].tolist()
        top = rows.max(dim=-1)
        if top.values.isnan().any():
            raise no_numbers()
        branch.logprobs += found  # only now, when nothing can fail any more
        branch.best += zip(top.indices.tolist(), top.values.tolist(), strict=True)
        self._rows += len(rows)
        if branch.missing == 0:
            branch.seq = None

    def restart(self) -> None:
        """Begin again, after the job was suspended."""
        self.clock.prefilled = None
        for branch in self._branches():
            branch.logprobs, branch.best, branch.seq = [], [], None

    def conclude(self) -> None:
        """Deliver the outcome."""
        scored = []
        for i, (choice, given) in enumerate(zip(self._choices, self._given, strict=True)):
            bare: tuple[float | None, ...] = ()
            if self._bare:
                bare = (None, *self._bare[i].logprobs) if choice.tokens else ()
            picked = [token for token, _ in given.best]
            scored.append(
                ScoredChoice(
                    text=choice.text,
                    tokens=tuple(choice.tokens),
                    logprobs=tuple(given.logprobs),
                    unconditional=bare,
                    greedy_prefix=common_prefix(choice.tokens, picked),
                    best=tuple(given.best),
                )
            )
        self.deliver(Scored(tuple(scored), self.usage(), self.clock.timing()))

    def usage(self) -> Usage:
        """See `Job`."""
        return dataclasses.replace(super().usage(), scored=self._rows)

    def _branches(self) -> list[_Branch]:
        return [*self._given, *self._bare]
