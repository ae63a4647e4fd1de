"""Whether a text whose items must differ can still go on.

What lives here: `Foresight`, the grammar over single bytes kept beside a generation, and a search
over the few texts that may still become a repetition. What does not: masks (checked.py) and the
finding of repetitions (schema/distinct.py).

After "[0,0" nothing can follow where numbers have no leading zeros: the second 0 must never be
begun. The search goes on only along texts that are the beginning of an earlier item; as soon as
one byte may follow that no earlier item has, the text can go on. So it looks at a few bytes, or,
where all values are used up, at no more than those. It is exact up to `_STATES`; beyond that a
text counts as one that can go on.
"""

from __future__ import annotations

from llguidance import LLMatcher

from phloem.grammar.engine import consume, try_consume
from phloem.grammar.schema.distinct import Tracker

__all__ = ["Foresight"]

_STATES = 300
_CLOSERS = frozenset(b"]}")


class Foresight:
    """The byte-level grammar `root` (at its start, not changed), advanced with the text."""

    __slots__ = ("_matcher", "_states")

    def __init__(self, root: LLMatcher) -> None:
        self._matcher = root.deep_copy()
        self._states = 0

    def copy(self) -> Foresight:
        """An independent one in the same state."""
        return Foresight(self._matcher)

    def feed(self, data: bytes) -> None:
        """Advance over text that the grammar allows."""
        consume(self._matcher, data)

    def rollback(self, count: int) -> None:
        """Undo the last `count` bytes."""
        if count:
            self._matcher.rollback(count)

    def can_go_on(self, tracker: Tracker, data: bytes) -> bool:
        """Whether some whole text begins with the text so far and `data`, which `tracker` has
        read already. Changes nothing."""
        if not tracker.may_be_stuck():
            return True
        taken = try_consume(self._matcher, data)
        self._states = _STATES
        found = taken < len(data) or self._search(tracker)
        self.rollback(taken)
        return found

    def _search(self, tracker: Tracker) -> bool:
        self._states -= 1
        if self._states < 0 or not tracker.may_be_stuck() or self._matcher.is_accepting():
            return True
        mask = self._matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        allowed.sort(key=lambda byte: byte not in _CLOSERS)
        later = []
        for byte in allowed:
            twin = tracker.copy()
            if not twin.feed(bytes((byte,))):
                continue
            if not twin.may_be_stuck():
                return True
            later.append((byte, twin))
        return any(self._passes(byte, twin) for byte, twin in later)

    def _passes(self, byte: int, tracker: Tracker) -> bool:
        self._matcher.consume_token(byte)
        found = self._search(tracker)
        self._matcher.rollback(1)
        return found
