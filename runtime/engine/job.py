"""A piece of work for the engine, from its arrival to its one outcome.

What lives here: `Job`, what the scheduler needs to know of any of them. What does not: the kinds
(`generation.py`, `scoring.py`, `prefix.py`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from phloem.programs.protocol import Timing, Usage
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.messages import Deliver
from phloem.runtime.engine.sequence import Sequence

__all__ = ["Clock", "Job"]


@dataclass(slots=True)
class Clock:
    """When a job reached its phases, in `time.monotonic()` seconds."""

    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    prefilled: float | None = None
    latest: float | None = None
    """When the latest token came."""

    def timing(self, mask_s: float = 0.0) -> Timing:
        """Milliseconds by phase, up to now."""
        now = time.monotonic()
        started = self.started or now
        prefilled = self.prefilled or now
        return Timing(
            queue_ms=1e3 * (started - self.arrived),
            prefill_ms=1e3 * (prefilled - started),
            decode_ms=1e3 * (now - prefilled),
            mask_ms=1e3 * mask_s,
            total_ms=1e3 * (now - self.arrived),
        )


class Job(ABC):
    """`seq` holds the tokens the job starts from.

    `deadline` is a `time.monotonic()` instant; `interest` is the one of the job's session.
    `prompt`, `reused` and `prefilled` are tokens,
    as in `Usage`; `reused` is set when the job first runs. Of the prompt's tokens the first
    `base` stay as they are (all but a healed border), and the first `reusable` may come from
    the cache (those after them are computed for their logits).
    """

    kind: ClassVar[str]

    def __init__(
        self,
        seq: Sequence,
        deliver: Deliver,
        *,
        deadline: float | None = None,
        priority: int = 0,
        interest: Interest | None = None,
    ) -> None:
        self.seq = seq
        self.deliver = deliver
        self.deadline = deadline
        self.priority = priority
        self.interest = interest or Interest()
        self.clock = Clock()
        self.ticket: int | None = None
        """Its place by arrival, once it has been queued."""
        self.prompt = self.base = len(seq.tokens)
        self.reused: int | None = None

    @property
    def reusable(self) -> int:
        """Prompt tokens that need not be computed if the cache has them, at the job's start."""
        return min(self.seq.logits_from, self.prompt)

    def usage(self) -> Usage:
        """Its tokens so far."""
        return Usage(prompt=self.prompt, reused=self.reused or 0, prefilled=self.prefilled)

    @property
    def prefilled(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt - (self.reused or 0)

    def sequences(self) -> list[Sequence]:
        """The sequences that hold pages for this job now."""
        return [self.seq]

    def rows(self, seq: Sequence, limit: int) -> int:
        """How many of a sequence's pending tokens to compute next, at most `limit`."""
        return min(seq.pending, limit)

    @property
    def prefilling(self) -> bool:
        """Whether the prompt is not yet computed in full."""
        return self.clock.prefilled is None

    @property
    def prompt_ready(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.seq.computed >= self.base

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether nothing remains to be done."""

    @abstractmethod
    def requested(self) -> int:
        """Tokens that the job may add to its sequence."""

    @abstractmethod
    def conclude(self) -> None:
        """Deliver the outcome of a job that is complete."""

    def progress(self) -> None:  # noqa: B027 - most kinds have none to show
        """After a pass: deliver what can be shown before the outcome, if it is time for that."""

    def tell(self) -> None:  # noqa: B027 - as above
        """Deliver what can be shown before the outcome and was not yet."""

    def waits(self) -> None:  # noqa: B027 - most kinds have nobody who asks
        """Deliver that the job is accepted and waits for its turn."""
