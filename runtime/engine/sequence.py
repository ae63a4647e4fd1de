"""A sequence of tokens on its way through the decoder.

What lives here: `Sequence`, plain state that the phases of the scheduler share. What does not:
what is done with it (`sequence_kv.py` for its pages, `completion.py` for its logits).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from phloem.runtime.engine.radix_tree import Node
from phloem.runtime.engine.tokens import common_prefix

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, and the pages that hold the KV of the first `computed` of them.

    Token i lies in page `pages[i // page_size]`; an array, because page tables are made of it in
    each pass. Rows at or after `logits_from` are asked for
    their logits when they are computed. Of the pages, the first `published` are nodes of the
    prefix cache down to `node`; `tail` is the cached node of the next page, where this
    sequence appends to it in place.

    `draft` are guesses of the tokens from `draft_at` on. Their KV is computed with the tokens
    before them, beyond `computed`, so that it is nobody's until they are confirmed.
    """

    namespace: str
    tokens: list[int]
    logits_from: int
    computed: int = 0
    pages: array[int] = field(default_factory=lambda: array("q"))
    node: Node | None = None
    published: int = 0
    tail: Node | None = None
    draft: list[int] = field(default_factory=list)
    draft_at: int = 0

    @property
    def pending(self) -> int:
        """Tokens that still have to enter the decoder."""
        return len(self.tokens) - self.computed

    def guess(self, draft: list[int]) -> None:
        """Have guesses computed behind the tokens, in the next pass only."""
        self.draft, self.draft_at = draft, len(self.tokens)

    def confirm(self) -> int:
        """Count the guesses that have become the sequence's tokens as computed; returns them."""
        stood = common_prefix(self.draft, self.tokens[self.draft_at :])
        self.computed = self.draft_at + stood
        return stood
