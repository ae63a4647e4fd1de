"""Computing a constant prefix once and keeping it: pins.

What lives here: `Prefix`, the job, and `Pins`, which are bounded. What does not: the cache.
"""

from __future__ import annotations

from collections import OrderedDict

from phloem.runtime.engine.job import Job
from phloem.runtime.engine.messages import Computed
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.sequence_kv import SequenceKV

__all__ = ["Pins", "Prefix"]


class Prefix(Job):
    """One `Backend.prefill`: no logits are wanted."""

    kind = "prefill"

    @property
    def complete(self) -> bool:
        """Whether all is computed."""
        return not self.seq.pending

    def requested(self) -> int:
        """Nothing is generated."""
        return 0

    def conclude(self) -> None:
        """Deliver the outcome."""
        self.deliver(Computed(self.prompt))


class Pins:
    """Sequences whose pages stay locked: at most `limit` pages, the oldest pin goes first."""

    def __init__(self, kv: SequenceKV, limit: int) -> None:
        self._kv = kv
        self._limit = limit
        self.locked = 0
        """Pages that pins hold, as last counted: for other threads."""
        self._pinned: OrderedDict[tuple[str, tuple[int, ...]], Sequence] = OrderedDict()

    def add(self, seq: Sequence) -> None:
        """Take over a computed sequence and its pages; more than the limit is not kept."""
        key = (seq.namespace, tuple(seq.tokens))
        if key in self._pinned:
            self._kv.detach(self._pinned.pop(key))
        self._pinned[key] = seq
        while self._pinned and self.pages() > self._limit:
            self.drop_oldest()
        self.locked = self.pages()

    def drop_oldest(self) -> bool:
        """Unlock the oldest pin; its KV stays cached while there is room. False: there is none."""
        if not self._pinned:
            return False
        _, seq = self._pinned.popitem(last=False)
        self._kv.detach(seq)
        self.locked = self.pages()
        return True

    def pages(self) -> int:
        """Pages that pins hold (shared ones counted once)."""
        return len({page for seq in self._pinned.values() for page in seq.pages})

    def sequences(self) -> list[Sequence]:
        """The pinned sequences, for the audit."""
        return list(self._pinned.values())
