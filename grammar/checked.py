"""A matcher with a check beside the grammar: items and names that must not repeat.

What lives here: `CheckedMatcher`, which takes out of the engine's mask the tokens that would
complete a repetition. What does not: the reading of the text (schema/distinct.py).

A token can only complete a repetition if it holds one of the bytes that end an item; those few
that the grammar allows are tried, each on a copy of the tracker. Where every way on would repeat
something, the matcher says so: the language is then not prefix-closed, and the step fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phloem.errors import ConstraintError
from phloem.grammar.engine import EngineTokenizer
from phloem.grammar.matcher import EngineMatcher
from phloem.grammar.schema.distinct import Tracker

__all__ = ["CheckedMatcher"]


class CheckedMatcher:
    """`spec.Matcher`: an `EngineMatcher` whose text also passes a `Tracker`.

    `prelude` is text that comes before the JSON (`Constraint.after`).
    """

    __slots__ = ("_accepted", "_fresh", "_inner", "_lead", "_prelude", "_tokenizer", "_tracker")

    def __init__(
        self,
        inner: EngineMatcher,
        tokenizer: EngineTokenizer,
        tracker: Tracker,
        prelude: str | None = None,
    ) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._fresh = tracker
        self._prelude = None if prelude is None else prelude.encode()
        self._accepted: list[int] = []
        self._restart()

    def _restart(self) -> None:
        self._tracker = self._fresh.copy()
        self._lead = None if self._prelude is None else b""

    def fill_mask(self, out: Any) -> bool:
        """See `spec.Matcher`."""
        self._inner.fill_mask(out)
        enders = b"" if self._lead is not None else self._tracker.enders()
        if not enders:
            return True
        words = np.asarray(out).view(np.uint32)
        for token in self._tokenizer.holding(enders):
            bit = np.uint32(1 << (token & 31))
            if words[token >> 5] & bit and not self._passes([token]):
                words[token >> 5] &= ~bit
        if not words.any():
            raise ConstraintError(
                "every way on would repeat an item that must be unique",
                hint="raise the number of possible values, or lower minItems",
            )
        return True

    def accept(self, token: int) -> None:
        """See `spec.Matcher`."""
        if not self._feed(token):
            raise ConstraintError(
                f"token {token} repeats an item or a name that must be unique",
                hint="a token outside the mask was accepted",
            )
        self._inner.accept(token)
        self._accepted.append(token)

    def accepts_prefix(self, tokens: Sequence[int]) -> int:
        """See `spec.Matcher`."""
        count = self._inner.accepts_prefix(tokens)
        while count and not self._passes(tokens[:count]):
            count -= 1
        return count

    def rollback(self, count: int) -> None:
        """See `spec.Matcher`."""
        self._inner.rollback(count)
        self._accepted = self._accepted[: len(self._accepted) - count]
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
        tokens = self._inner.closing(limit)
        return None if tokens is None or not self._passes(tokens) else tokens

    def copy(self) -> CheckedMatcher:
        """See `spec.Matcher`."""
        twin = CheckedMatcher(self._inner.copy(), self._tokenizer, self._fresh)
        twin._prelude, twin._lead = self._prelude, self._lead
        twin._accepted, twin._tracker = list(self._accepted), self._tracker.copy()
        return twin

    def _passes(self, tokens: Sequence[int]) -> bool:
        """Whether the tracker would pass these tokens."""
        kept = self._tracker, self._lead
        self._tracker = self._tracker.copy()
        passed = all(self._feed(token) for token in tokens)
        self._tracker, self._lead = kept
        return passed

    def _feed(self, token: int) -> bool:
        if token in self._tokenizer.eos_ids:
            return True
        data = bytes(self._tokenizer.ll.decode_bytes([token]))
        if self._lead is not None and self._prelude is not None:
            before, found, data = (self._lead + data).partition(self._prelude)
            self._lead = None if found else before
        return self._tracker.feed(data)
