"""The tokenizers llguidance works with: the model's own, and one of single bytes.

What lives here: `EngineTokenizer`, which pairs an `LLTokenizer` for the model with the ids that
end a sequence, and `byte_tokenizer()`, over whose 256 tokens a shortest way to a valid end can
be searched (closing.py). What does not: any grammar.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from phloem.errors import ConfigError

__all__ = ["BYTE_EOS", "EngineTokenizer", "byte_tokenizer", "consume", "try_consume"]

BYTE_EOS = 256
"""The end-of-sequence id of the byte tokenizer; ids below it are the bytes themselves."""
_LONGEST = 256
"""Bytes; more than a token of any vocabulary has."""


@dataclass(frozen=True, slots=True)
class EngineTokenizer:
    """A model's vocabulary as the engine sees it. `words` is the length of a mask in int32."""

    ll: LLTokenizer
    vocab_size: int
    eos_ids: tuple[int, ...]
    special_ids: dict[str, int]
    holders: dict[bytes, np.ndarray] = field(default_factory=dict)
    """Filled as `holding` is asked."""
    spellings: dict[bytes, list[int]] = field(default_factory=dict)
    """The ordinary tokens by what they say; filled when `beginning` is first asked."""

    @property
    def words(self) -> int:
        """int32 words in one mask: ceil(vocab_size / 32)."""
        return (self.vocab_size + 31) // 32

    def holding(self, some: bytes) -> np.ndarray:
        """The tokens that hold any of these bytes, as a mask of uint32 words; made once."""
        if some not in self.holders:
            held = np.zeros(32 * self.words, dtype=np.bool_)
            for token in range(self.ll.vocab_size):
                data = bytes(self.ll.decode_bytes([token]))
                held[token] = len(data) > len(data.translate(None, some))
            self.holders[some] = np.packbits(held, bitorder="little").view(np.uint32)
        return self.holders[some]

    def beginning(self, text: bytes) -> list[int]:
        """The ids of the ordinary tokens that `text` begins with, shortest first."""
        if not self.spellings:
            for token in range(self.ll.vocab_size):
                if not self.ll.is_special_token(token):
                    data = bytes(self.ll.decode_bytes([token]))
                    self.spellings.setdefault(data, []).append(token)
        sizes = range(1, min(len(text), _LONGEST) + 1)
        return [token for size in sizes for token in self.spellings.get(text[:size], ())]

    def encode(self, text: bytes) -> list[int]:
        """Tokens that say `text`, ordinary ones only: a special token's spelling is text.

        Where the tokenizer itself makes a special token of it, the longest tokens that fit.
        """
        tokens = list(self.ll.tokenize_bytes(text))
        if not any(map(self.ll.is_special_token, tokens)):
            return tokens
        spelled: list[int] = []
        while text and (fitting := self.beginning(text)):
            spelled.append(fitting[-1])
            text = text[len(bytes(self.ll.decode_bytes(spelled[-1:]))) :]
        return tokens if text else spelled

    @classmethod
    def from_json(
        cls, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]
    ) -> EngineTokenizer:
        """From the text of a Hugging Face `tokenizer.json`.

        `vocab_size` is the number of logits (it may exceed the tokenizer's own count: the ids
        in between are never allowed). Raises `ConfigError` if the text is no such tokenizer.
        """
        if not eos_ids:
            raise ConfigError(
                "a constrained generation needs an end-of-sequence token",
                hint="give at least one id in eos_ids",
            )
        try:
            data = json.loads(tokenizer_json)
            # Padding and truncation would change what llguidance reads back from the tokenizer.
            data["padding"] = data["truncation"] = None
            ll = LLTokenizer(json.dumps(data), n_vocab=vocab_size, eos_token=list(eos_ids))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"llguidance can't read this tokenizer: {error}",
                hint="a `tokenizer.json` of the Hugging Face tokenizers library is needed",
            ) from error
        special = {
            token["content"]: int(token["id"])
            for token in data.get("added_tokens", ())
            if token.get("special")
        }
        return cls(ll, vocab_size, tuple(eos_ids), special)


class _Bytes:
    """What `TokenizerWrapper` asks of a tokenizer, for a vocabulary of the 256 bytes."""

    eos_token_id = BYTE_EOS
    bos_token_id: int | None = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (BYTE_EOS,)

    def __call__(self, text: Any) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@functools.cache
def byte_tokenizer() -> LLTokenizer:
    """A tokenizer whose token ids are byte values; shared by the process."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))


def consume(matcher: LLMatcher, tokens: Sequence[int]) -> bool:
    """Advance over all of `tokens` (or bytes); False, and a broken matcher, if they don't fit."""
    return all(map(matcher.consume_token, tokens))


def try_consume(matcher: LLMatcher, tokens: Sequence[int]) -> int:
    """Advance over as many of `tokens` (or bytes) as fit; how many."""
    taken = 0
    while taken < len(tokens) and matcher.try_consume_tokens([tokens[taken]]):
        taken += 1
    return taken
