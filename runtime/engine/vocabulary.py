"""What the engine needs to know of a tokenizer, made once per model.

What lives here: `Vocabulary`. What does not: the tokenizer (`runtime/model/tokenizer.py`).
"""

from __future__ import annotations

from phloem.runtime.engine.healing import TokenTable
from phloem.runtime.model.tokenizer import Tokenizer

__all__ = ["Vocabulary"]


class Vocabulary:
    """Tables over the ids [0, size) that can be sampled.

    `width` is the width of the logits and of the masks; ids from `size` on are padding.
    """

    def __init__(self, tokenizer: Tokenizer, width: int, eos_ids: frozenset[int]) -> None:
        self.width = width
        self.size = min(width, tokenizer.vocab_size)
        self.eos_ids = eos_ids
        self.token_bytes = [tokenizer.token_bytes(i) for i in range(self.size)]
        self.table = TokenTable(self.token_bytes, excluded=tokenizer.specials.values())
        self._tokenizer = tokenizer

    def encode_bytes(self, data: bytes) -> list[int]:
        """Tokens that say `data`: the tokenizer's own where `data` is text."""
        try:
            return self._tokenizer.encode(data.decode())
        except UnicodeDecodeError:
            return self.table.cover(data)

    def text(self, token: int) -> str:
        """A token's own text, for people; part of a character shows as U+FFFD."""
        return self.token_bytes[token].decode("utf-8", "replace")
