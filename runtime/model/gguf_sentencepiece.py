"""The sentencepiece vocabulary inside a GGUF file, as the text of a `tokenizer.json`.

What lives here: BPE vocabularies with scores and byte fallback (GGUF's tokenizer model "llama"),
as Gemma has them. What does not: byte-level BPE (`gguf_tokenizer.py`), and vocabularies that put
a space before every text, which are refused there: a session's texts are tokenised piece by piece.

A score is minus the rank at which a token was learned, so merges are made again from the scores:
of all ways to make tokens of two others, the token that was learned first goes first. (Sennrich
et al. 2016; the order of equals is the one of Hugging Face's converter.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["sentencepiece_json"]

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
SPACE = "\u2581"


def sentencepiece_json(meta: Mapping[str, Any]) -> str:
    """Build it from the file's metadata."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    unknown = tokens[meta.get("tokenizer.ggml.unknown_token_id", 0)]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    spaces_back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added(i, token, special=kind == CONTROL)
                for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
                if kind in {CONTROL, USER_DEFINED}
            ],
            "normalizer": space,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [spaces_back, {"type": "ByteFallback"}, {"type": "Fuse"}],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": unknown,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": _merges(tokens, kinds, meta["tokenizer.ggml.scores"]),
            },
        },
        ensure_ascii=False,
    )


def _added(number: int, token: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _merges(tokens: list[str], kinds: list[int], scores: list[float]) -> list[list[str]]:
    """Every pair of ordinary tokens that makes a third, in the order in which BPE tries them."""
    ordinary = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}
    found = []
    for token, number in ordinary.items():
        pairs = [
            (token[:cut], token[cut:])
            for cut in range(1, len(token))
            if token[:cut] in ordinary and token[cut:] in ordinary
        ]
        pairs.sort(key=lambda pair: (ordinary[pair[0]], ordinary[pair[1]]))
        found += [(scores[number], left, right) for left, right in pairs]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [[left, right] for _, left, right in found]
