"""The text that every output of a constraint begins with: it goes with the prompt.

What lives here: `head`, for regular expressions. What does not: forced text further on; a server
can't be told to go on in the middle of a grammar.

Each of these tokens would take the server a step. Which tokens they are is the grammar's and the
tokenizer's word, as in the embedded engine: those that the tokenizer would write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from phloem.grammar.spec import Constraint

__all__ = ["head"]

_SPECIAL = frozenset("[](){}.*+?|^$")
_REPEATS = frozenset("*+?{")
_BEHIND = re.compile(r"\\[AbB]|\(\?<[=!]|(?<![\[\\])\^")
"""What depends on the text before it; taken for that where in doubt."""


def head(
    constraint: Constraint, forced: Sequence[int], token_bytes: Sequence[bytes]
) -> tuple[list[int], Constraint]:
    """The tokens at the beginning, and the constraint on what follows them.

    `forced` are the tokens that the grammar forces first, `token_bytes` the bytes of each token.
    No tokens are given for another kind of constraint, a pattern that begins with no literal, or
    one of which a part may look back at what stands before it.
    """
    if constraint.kind != "regex" or constraint.after is not None:
        return [], constraint
    if _BEHIND.search(constraint.source):
        return [], constraint
    text, ends = _literal(constraint.source)
    for count in range(len(forced), 0, -1):
        written = b"".join(token_bytes[token] for token in forced[:count])
        size = len(written.decode(errors="ignore"))
        if 0 < size <= len(text) and text[:size].encode() == written:
            rest = constraint.source[ends[size - 1] :]
            if rest:
                return list(forced[:count]), replace(constraint, source=rest)
    return [], constraint


def _literal(pattern: str) -> tuple[str, list[int]]:
    """The characters that a pattern begins with, and where in it each one ends."""
    text, at = "", 0
    ends: list[int] = []
    if _alternates(pattern):
        return text, ends
    while at < len(pattern):
        char = pattern[at]
        end = at + 1
        if char == "\\":
            char, end = pattern[end : end + 1], end + 1
            if not char or char.isalnum() or char == "_":
                break
        elif char in _SPECIAL:
            break
        if pattern[end : end + 1] in _REPEATS:
            break
        text += char
        ends.append(end)
        at = end
    return text, ends


def _alternates(pattern: str) -> bool:
    """Whether the whole pattern is a choice, so that its beginning belongs to one branch only."""
    depth, listed, at = 0, False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif listed:
            listed = char != "]"
        elif char == "[":
            # A bracket that comes first stands for itself.
            listed = True
            at += pattern[at + 1 : at + 2] == "^"
            at += pattern[at + 1 : at + 2] == "]"
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            return True
        at += 1
    return False
