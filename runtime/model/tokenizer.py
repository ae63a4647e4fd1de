"""Text to token ids and back, without ever mistaking a user's text for a special token.

What lives here: `Tokenizer`, over a Hugging Face `tokenizer.json`, and `StreamDecoder`, which
turns the bytes of generated tokens into whole characters. What does not: chat templates
(`chat.py`), and making a `tokenizer.json` out of a GGUF file (`gguf_tokenizer.py`).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from typing import Any

import tokenizers

from phloem.errors import ModelError

__all__ = ["StreamDecoder", "Tokenizer", "byte_alphabet"]


class Tokenizer:
    """A tokenizer whose `encode` sees ordinary text only. Safe to share between threads.

    `tokenizers` by itself turns the spelling of an added token inside a text into that token.
    Here control tokens exist by `special_id` only.
    """

    def __init__(self, tokenizer_json: str) -> None:
        self._json = tokenizer_json
        try:
            spec = json.loads(tokenizer_json)
            self._encoder = _text_encoder(spec)
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelError(
                f"the model's tokenizer.json can't be used: {error}",
                hint="download the model again (phloem model pull)",
            ) from error
        self._specials = {
            token["content"]: self._encoder.token_to_id(token["content"])
            for token in spec["added_tokens"]
            if _is_control(token)
        }
        self._spellings = {token: spelling for spelling, token in self._specials.items()}
        self._bytes = _token_bytes(spec, self._encoder)
        self._lengths = list(map(len, self._bytes))
        self._check_that_text_is_harmless()

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self._bytes)

    @property
    def specials(self) -> dict[str, int]:
        """Spelling to id of every control token."""
        return dict(self._specials)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; the spelling of a special token in it stays ordinary text."""
        return self._encoder.encode(text, add_special_tokens=False).ids

    def special_id(self, spelling: str) -> int | None:
        """The id of the control token spelled so, or None."""
        return self._specials.get(spelling)

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to a text, in UTF-8: maybe part of a character; b"" for specials."""
        return self._bytes[token]

    def length(self, token: int) -> int:
        """How many bytes `token` adds to a text."""
        return self._lengths[token]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")

    def spell(self, tokens: Iterable[int]) -> str:
        """As `decode`, with control tokens by their spelling."""
        known = self._spellings
        parts = (known[t].encode() if t in known else self._bytes[t] for t in tokens)
        return b"".join(parts).decode("utf-8", errors="replace")

    def to_json(self) -> str:
        """The `tokenizer.json`, control tokens included, as constraint engines read it."""
        return self._json

    def _check_that_text_is_harmless(self) -> None:
        """No control token's spelling may encode to a control token (a merge could lead there)."""
        control = set(self._specials.values())
        for spelling in self._specials:
            if control.intersection(self.encode(spelling)):
                raise ModelError(
                    f"the tokenizer can't tell the text {spelling!r} from the special token",
                    hint="serve the model with SGLang and use the SGLang backend",
                )


class StreamDecoder:
    """Bytes in, whole characters out: the start of a character waits for its end."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        """The characters that are complete with `data`; may be empty."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end of the stream: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def copy(self) -> StreamDecoder:
        """An independent decoder in the same state."""
        twin = StreamDecoder()
        twin._decoder.setstate(self._decoder.getstate())
        return twin


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


def _is_control(token: dict[str, Any]) -> bool:
    """Added tokens that steer a model: the special ones, and tags such as <think>.

    Other added tokens (runs of blanks) are ordinary text.
    """
    content = token["content"]
    return bool(token["special"]) or (content.startswith("<") and content.endswith(">"))


def _text_encoder(spec: dict[str, Any]) -> tokenizers.Tokenizer:
    """An encoder that treats control tokens as the text they are spelled with."""
    added = [{**token, "special": _is_control(token)} for token in spec["added_tokens"]]
    encoder = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": added}))
    encoder.encode_special_tokens = True
    return encoder


def _token_bytes(spec: dict[str, Any], encoder: tokenizers.Tokenizer) -> list[bytes]:
    spell = _spell_byte_level if _is_byte_level(spec) else _spell_sentencepiece
    table = {i: spell(token) for token, i in encoder.get_vocab(with_added_tokens=False).items()}
    for token in spec["added_tokens"]:
        identity = encoder.token_to_id(token["content"])
        assert identity is not None
        table[identity] = b"" if token["special"] else token["content"].encode()
    return [table.get(i, b"") for i in range(max(table) + 1)]


def _is_byte_level(spec: dict[str, Any]) -> bool:
    decoder = spec.get("decoder") or {}
    return any(d.get("type") == "ByteLevel" for d in [decoder, *decoder.get("decoders", [])])


_ALPHABET = byte_alphabet()


def _spell_byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:  # a token written as plain text, outside the alphabet
        return token.encode()


def _spell_sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()
