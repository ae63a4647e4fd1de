"""A matcher with a check beside the grammar: items and names that must not repeat.

What lives here: `CheckedMatcher`, which takes out of the engine's mask the tokens that would
complete a repetition, and those after which nothing but repetitions could follow. What does not:
the reading of the text (schema/distinct.py), and the search ahead (foresight.py).

A token can only complete a repetition if it holds one of the bytes that end an item, and only
lead into one if it is how an earlier item goes on; those few that the grammar allows are tried,
each on a copy of the tracker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phloem.errors import ConstraintError
from phloem.grammar.engine import EngineTokenizer
from phloem.grammar.foresight import Foresight
from phloem.grammar.matcher import EngineMatcher
from phloem.grammar.schema.distinct import Tracker

__all__ = ["CheckedMatcher"]


class CheckedMatcher:
    """`spec.Matcher`: an `EngineMatcher` whose text also passes a `Tracker`.

    `foresight` is at the start of the JSON (None: no look ahead, and a text may come to where
    every way on repeats something, which is an error). `prelude` is text that comes before the
    JSON (`Constraint.after`).
    """

    __slots__ = (
        "_accepted", "_foresight", "_fresh", "_inner", "_lead", "_prelude", "_sizes", "_tokenizer",
        "_tracker",
    )  # fmt: skip

    def __init__(
        self,
        inner: EngineMatcher,
        tokenizer: EngineTokenizer,
        tracker: Tracker,
        foresight: Foresight | None,
        prelude: str | None = None,
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._fresh = tracker
        self._foresight = foresight
        self._prelude = None if prelude is None else prelude.encode()
        self._accepted: list[int] = []
        self._sizes: list[int] = []
        """Bytes of JSON in each accepted token."""
        self._restart()

    def _restart(self) -> None:
        self._tracker = self._fresh.copy()
        self._lead = None if self._prelude is None else b""

    def fill_mask(self, out: Any) -> bool:
        """See `spec.Matcher`."""
        self._inner.fill_mask(out)
        if self._lead is not None:
            return True
        words = np.asarray(out).view(np.uint32)
        decode = self._tokenizer.ll.decode_bytes
        tried = [(bytes(decode([token])), token) for token in self._risky(words)]
        begun: set[bytes] = set()
        # Where the text can go on after a longer token it can after that one's beginnings too.
        for data, token in sorted(tried, key=lambda pair: -len(pair[0])):
            if data in begun:
                continue
            if token in self._tokenizer.eos_ids or self._goes_on(data):
                begun.update(data[:size] for size in range(1, len(data) + 1))
            else:
                words[token >> 5] &= ~np.uint32(1 << (token & 31))
        if not words.any():
            raise ConstraintError(
                "every way on would repeat an item that must be unique",
                hint="raise the number of possible values, or lower minItems",
            )
        return True

    def _risky(self, words: np.ndarray) -> list[int]:
        """The allowed tokens that may complete a repetition, or lead to where only those follow."""
        risky = np.zeros_like(words)
        if enders := self._tracker.enders():
            risky = np.bitwise_and.reduce([self._tokenizer.holding(some) for some in enders])
        if self._foresight is not None:
            for rest in self._tracker.repetitions():
                for token in self._tokenizer.beginning(rest):
                    risky[token >> 5] |= np.uint32(1 << (token & 31))
        risky &= words
        few = np.flatnonzero(risky)
        bits = np.unpackbits(risky[few].view(np.uint8), bitorder="little")
        at = np.flatnonzero(bits)
        return [int(token) for token in (few[at >> 5] << 5) + (at & 31)]

    def _goes_on(self, data: bytes) -> bool:
        """Whether more JSON repeats nothing, and the text could go on after it."""
        tracker = self._tracker.copy()
        if not tracker.feed(data):
            return False
        return self._foresight is None or self._foresight.can_go_on(tracker, data)

    def accept(self, token: int) -> None:
        """See `spec.Matcher`."""
        data = self._feed(token)
        if data is None:
            raise ConstraintError(
                f"token {token} repeats an item or a name that must be unique",
                hint="a token outside the mask was accepted",
            )
        self._inner.accept(token)
        self._accepted.append(token)
        self._sizes.append(len(data))
        if self._foresight is not None:
            self._foresight.feed(data)

    def accepts_prefix(self, tokens: Sequence[int]) -> int:
        """See `spec.Matcher`."""
        count = self._inner.accepts_prefix(tokens)
        while count and not self._passes(tokens[:count]):
            count -= 1
        return count

    def rollback(self, count: int) -> None:
        """See `spec.Matcher`."""
        self._inner.rollback(count)
        kept = len(self._accepted) - count
        if self._foresight is not None:
            self._foresight.rollback(sum(self._sizes[kept:]))
        del self._accepted[kept:], self._sizes[kept:]
        self._restart()
        for token in self._accepted:
            self._feed(token)

    def forced(self) -> list[int]:
        """See `spec.Matcher`."""
        tokens = self._inner.forced()
        return tokens[: self.accepts_prefix(tokens)]

    def is_complete(self) -> bool:
        """See `spec.Matcher`."""
        return self._inner.is_complete()

    def is_finished(self) -> bool:
        """See `spec.Matcher`."""
        return self._inner.is_finished()

    def closing(self, limit: int) -> list[int] | None:
        """See `spec.Matcher`."""
        return self._inner.closing(limit, lambda way: self._tracker.copy().feed(way))

    def copy(self) -> CheckedMatcher:
        """See `spec.Matcher`."""
        foresight = None if self._foresight is None else self._foresight.copy()
        twin = CheckedMatcher(self._inner.copy(), self._tokenizer, self._fresh, foresight)
        twin._prelude, twin._lead = self._prelude, self._lead
        twin._accepted, twin._sizes = list(self._accepted), list(self._sizes)
        twin._tracker = self._tracker.copy()
        return twin

    def _passes(self, tokens: Sequence[int]) -> bool:
        """Whether the tracker would pass these tokens, and the text could go on after them."""
        kept = self._tracker, self._lead
        self._tracker = self._tracker.copy()
        data = b""
        passed = True
        for token in tokens:
            more = self._feed(token)
            if more is None:
                passed = False
                break
            data += more
        if passed and self._foresight is not None and self._lead is None:
            passed = self._foresight.can_go_on(self._tracker, data)
        self._tracker, self._lead = kept
        return passed

    def _feed(self, token: int) -> bytes | None:
        """The JSON that a token adds, read by the tracker; None if it repeats something."""
        if token in self._tokenizer.eos_ids:
            return b""
        data = bytes(self._tokenizer.ll.decode_bytes([token]))
        if self._lead is not None and self._prelude is not None:
            before, found, data = (self._lead + data).partition(self._prelude)
            self._lead = None if found else before
        return data if self._tracker.feed(data) else None
