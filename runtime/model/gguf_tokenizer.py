"""The tokenizer inside a GGUF file, as the text of a Hugging Face `tokenizer.json`.

What lives here: byte-level BPE vocabularies (GGUF's tokenizer model "gpt2") with the
pre-tokenizers of the Llama family. What does not: sentencepiece vocabularies as Gemma's
(`gguf_sentencepiece.py`); those that put a space before every text are refused (their safetensors
folder carries a `tokenizer.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phloem.errors import ModelError
from phloem.runtime.model.gguf_sentencepiece import sentencepiece_json
from phloem.runtime.model.tokenizer import byte_alphabet

__all__ = ["tokenizer_json_from_gguf"]

CONTROL, USER_DEFINED = 3, 4

# How each vocabulary's merges were learned: the text is cut by these expressions first.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2, "tekken": _TEKKEN}
# Vocabularies that look a whole piece up before merging.
WHOLE_PIECES = {"llama-bpe", "llama3", "tekken"}


def tokenizer_json_from_gguf(meta: Mapping[str, Any]) -> str:
    """Build it from the file's metadata. Raises `ModelError` for a kind it doesn't know."""
    if meta.get("tokenizer.ggml.model") == "llama":
        if meta.get("tokenizer.ggml.add_space_prefix", True):
            raise _unknown("a sentencepiece vocabulary that puts a space before every text")
        return sentencepiece_json(meta)
    if meta.get("tokenizer.ggml.model") != "gpt2":
        raise _unknown(f"tokenizer model {meta.get('tokenizer.ggml.model')!r}")
    pre = str(meta.get("tokenizer.ggml.pre", "default"))
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _added_tokens(tokens, meta["tokenizer.ggml.token_type"]),
            "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
            "pre_tokenizer": _pre_tokenizer(pre),
            "post_processor": None,
            "decoder": _byte_level(use_regex=True),
            "model": _bpe(tokens, merges, whole_pieces=pre in WHOLE_PIECES),
        },
        ensure_ascii=False,
    )


def _bpe(tokens: list[str], merges: list[list[str]], *, whole_pieces: bool) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": whole_pieces,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
    }


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _pre_tokenizer(pre: str) -> dict[str, Any]:
    if pre in {"default", "gpt-2"}:
        return _byte_level(use_regex=True)
    if pre == "smollm":
        digits = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, _byte_level(use_regex=True)]}
    if pre not in SPLITS:
        raise _unknown(f"pre-tokenizer {pre!r}")
    split = {
        "type": "Split",
        "pattern": {"Regex": SPLITS[pre]},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _added_tokens(tokens: list[str], kinds: list[int]) -> list[dict[str, Any]]:
    alphabet = set(byte_alphabet())
    return [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        # Converters have marked ordinary tokens as control; real ones are spelled in ASCII.
        if kind == USER_DEFINED or (kind == CONTROL and set(token) <= alphabet)
    ]


def _unknown(what: str) -> ModelError:
    return ModelError(
        f"this GGUF file's tokenizer can't be read: {what}",
        hint="use the model's safetensors folder (it carries a tokenizer.json), or serve the "
        "model with SGLang and use the SGLang backend",
    )
