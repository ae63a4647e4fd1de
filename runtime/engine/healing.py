"""Token healing: the border between a prompt's last text and what is generated after it.

What lives here: `TokenTable` (which tokens begin with given bytes) and `Border`. What does not:
when a border is healed (the session decides) and the sampling itself.

A prompt that ends in "http:" is one token away from "http://", which the tokenizer would write
with another token; a model rarely continues the first with "//". So the last token is taken
back and sampled again among the tokens that begin with its bytes (after Lundberg's "prompt
boundaries and token healing", 2023). The original token is among them: when it is drawn, its
own row of the same forward pass is valid and nothing was lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from phloem.grammar.spec import Matcher
from phloem.runtime.engine.masks import pack, unpack

__all__ = ["Border", "TokenTable"]

_KEPT = 64
"""Borders whose candidates are remembered; programs use few."""


@dataclass(frozen=True, slots=True)
class Border:
    """The candidates for a token taken back.

    `ids` [n] are the candidates, `rest_ids` [n] the token that is exactly what each says after
    the bytes taken back, or -1.
    """

    token: int
    text: bytes
    ids: np.ndarray
    rest_ids: np.ndarray


class TokenTable:
    """Bytes of all ordinary tokens, sorted."""

    def __init__(self, token_bytes: list[bytes], excluded: Collection[int]) -> None:
        self._bytes = token_bytes
        left_out = set(excluded)
        ordinary = [i for i, data in enumerate(token_bytes) if data and i not in left_out]
        ordinary.sort(key=lambda i: token_bytes[i])
        self._ids = ordinary
        self._sorted = [token_bytes[i] for i in ordinary]
        self._id_of = {data: i for i, data in zip(ordinary, self._sorted, strict=True)}
        self._longest = max(map(len, self._sorted), default=0)
        self._borders: OrderedDict[int, Border | None] = OrderedDict()

    def border(self, token: int) -> Border | None:
        """The border after a prompt that ends in `token`; None if it has no alternative."""
        if token in self._borders:
            self._borders.move_to_end(token)
            return self._borders[token]
        found = self._find(token)
        self._borders[token] = found
        if len(self._borders) > _KEPT:
            self._borders.popitem(last=False)
        return found

    def _find(self, token: int) -> Border | None:
        text = self._bytes[token]
        if not text:
            return None
        first = bisect_left(self._sorted, text)
        last = first
        while last < len(self._sorted) and self._sorted[last].startswith(text):
            last += 1
        longer = [i for i in self._ids[first:last] if len(self._bytes[i]) > len(text)]
        if not longer:
            return None
        rests = [self._id_of.get(self._bytes[i][len(text) :], -1) for i in longer]
        return Border(token, text, np.array([token, *longer]), np.array([-1, *rests]))

    def allowed(
        self, border: Border, vocab: int, mask: np.ndarray | None, matcher: Matcher | None
    ) -> np.ndarray:
        """The mask (`masks.py`) of the candidates that may be drawn, of `vocab` tokens.

        `mask` and `matcher` stand at the start of the constraint, which begins after the bytes
        taken back; None: there is no constraint.
        """
        allowed = np.zeros(vocab, dtype=np.bool_)
        if mask is None or matcher is None:
            allowed[border.ids] = True
            return pack(allowed)
        known = border.rest_ids >= 0
        fits_first = unpack(mask, vocab)
        allowed[border.ids[known]] = fits_first[border.rest_ids[known]]
        for token in border.ids[~known][1:].tolist():
            rest = self.cover(self._bytes[token][len(border.text) :])
            fits = bool(rest) and bool(fits_first[rest[0]])
            allowed[token] = fits and matcher.accepts_prefix(rest) == len(rest)
        allowed[border.token] = True
        return pack(allowed)

    def rest(self, border: Border, token: int) -> list[int]:
        """Tokens that say what `token` says after the bytes taken back; [] for the original."""
        return self.cover(self._bytes[token][len(border.text) :])

    def cover(self, data: bytes) -> list[int]:
        """Some tokens whose bytes joined are `data` (longest first); [] if there are none."""
        tokens: list[int] = []
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token = self._id_of.get(data[at : at + size])
                if token is not None:
                    tokens.append(token)
                    at += size
                    break
            else:
                return []
        return tokens
