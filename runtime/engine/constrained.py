"""One generation under one constraint: what may come, what must come, and the way out.

What lives here: `Constrained`, over a `grammar.spec.Matcher`. What does not: the grammar engine,
and sampling.

Where the grammar allows one text only, its tokens are the tokenizer's own and are dictated, not
sampled. They come from a queue, so it makes no difference to the tokens whether they are taken
in one chunk (jump-forward) or one by one.

With `closes`, the text shall be whole when the tokens run out. At each choice the shortest known
way to a complete text is kept; a token after which no way would fit in what is left is
taken back, and the way kept is dictated instead.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from phloem.grammar.spec import Matcher
from phloem.runtime.engine.vocabulary import Vocabulary

__all__ = ["Constrained"]


class Constrained:
    """`closes` stands for `finish="force"`: the text shall be whole when the tokens run out."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, *, closes: bool) -> None:
        self.matcher = matcher
        self.closes = closes
        self.closing = False
        """Whether the way out is being taken."""
        self.spent_s = 0.0
        """Seconds spent in the grammar engine."""
        self._dictated: deque[int] = deque()
        self._asked = False
        """Whether the matcher was asked what it dictates where it stands."""
        self._mask = np.zeros(-(-vocabulary.width // 32), dtype=np.int32)
        self._way_out: list[int] | None = None
        """The way out from the present choice, where it is known."""
        self._check_at = 1 << 62
        """Check tokens sampled with at most this many left."""

    def allowed(self) -> np.ndarray | None:
        """The mask (`masks.py`) of the tokens that may be sampled; None: all of them.

        It is the caller's until the next call.
        """
        began = time.perf_counter()
        restricted = self.matcher.fill_mask(self._mask)
        self.spent_s += time.perf_counter() - began
        return self._mask if restricted else None

    def dictated(self) -> int | None:
        """The next token, if it is not for the model to choose; `take_dictated` takes it."""
        if not self._asked and not self._dictated and not self.closing:
            began = time.perf_counter()
            self._dictated.extend(self.matcher.forced())
            self._asked = True
            self.spent_s += time.perf_counter() - began
        return self._dictated[0] if self._dictated else None

    def take_dictated(self) -> int:
        """Advance over the dictated token, and return it."""
        token = self._dictated.popleft()
        self._asked = False
        self.matcher.accept(token)
        return token

    def take(self, tokens: list[int], left: int) -> bool:
        """Advance over a sampled token (given as what it says), `left` tokens before the end.

        False: the token was not taken, because the text could not be completed after it; the
        way out is dictated from here.
        """
        check = self.closes and left <= self._check_at
        if check and self._way_out is None:
            self._way_out = self._find_way_out(left)
        before, self._way_out = self._way_out, None
        self._asked = False
        for token in tokens:
            self.matcher.accept(token)
        if not check or before is None:
            return True
        forced = self.matcher.forced()
        for token in forced:
            self.matcher.accept(token)
        self._way_out = self._find_way_out(left - 1 - len(forced))
        self.matcher.rollback(len(forced))
        if self._way_out is not None:
            return True
        self.matcher.rollback(len(tokens))
        self.closing = True
        self._dictated.extend(before)
        return False

    def _find_way_out(self, left: int) -> list[int] | None:
        began = time.perf_counter()
        found = self.matcher.closing(left) if left >= 0 else None
        self.spent_s += time.perf_counter() - began
        # Far from the end not every token needs a check; near it each one does. Where no way was
        # found the search was long, and others wait for it: there are few of them.
        self._check_at = left // 2 if found is None else left - (left - len(found)) // 8
        return found

    @property
    def whole(self) -> bool:
        """Whether the text so far is a whole text of the language."""
        return self.matcher.is_complete()

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come."""
        if self.closing:
            return not self._dictated
        return not self._dictated and self.matcher.is_finished()
