"""Random valid texts of a constraint, for tests and for `phloem grammar check`.

What lives here: a walk over the byte-level grammar that is drawn to the end as it gets longer.
What does not: a claim about how likely a text is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from llguidance import LLMatcher

from phloem.errors import ConstraintError
from phloem.grammar.closing import shortest_completion
from phloem.grammar.engine import byte_tokenizer
from phloem.grammar.lowering import lower, schema_model, wanted_words
from phloem.grammar.schema.distinct import Tracker, needs_tracking
from phloem.grammar.spec import Constraint

__all__ = ["samples"]

_TRIES = 8
_READABLE = b'"}],:0123456789abcdefghijklmnopqrstuvwxyz '


def samples(
    constraint: Constraint, count: int, *, seed: int = 0, soft_limit: int = 200
) -> list[str]:
    """Up to `count` random texts, without what `Constraint.after` demands before them.

    Past `soft_limit` bytes a text takes a short way to its end. Fewer come back only where
    items that must differ ran out of values. Raises `ConstraintError`.
    """
    grammar = LLMatcher.grammar_from_lark(lower(constraint))
    root = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if root.is_error():
        raise ConstraintError(f"the constraint can't be enforced: {root.get_error()[:300]}")
    tracker = None
    if constraint.kind == "json_schema":
        model = schema_model(constraint.source)
        tracker = Tracker(model) if needs_tracking(model) else None
    words = wanted_words(constraint)
    rng = random.Random(seed)
    found = []
    for _ in range(count * _TRIES):
        text = _walk(root, rng, soft_limit, words)
        if text is not None and (tracker is None or tracker.copy().feed(text)):
            found.append(text.decode())
        if len(found) == count:
            break
    return found


def _walk(
    root: LLMatcher, rng: random.Random, soft_limit: int, words: Sequence[bytes]
) -> bytes | None:
    matcher = root.deep_copy()
    text = bytearray()
    while len(text) < soft_limit:
        if matcher.is_accepting() and (matcher.is_stopped() or rng.random() < 0.3):
            return bytes(text)
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if not allowed and matcher.is_accepting():
            return bytes(text)
        if not allowed:
            raise ConstraintError("no text satisfies the constraint")
        readable = [byte for byte in allowed if byte in _READABLE]
        byte = rng.choice(readable if readable and rng.random() < 0.9 else allowed)
        matcher.consume_token(byte)
        text.append(byte)
    # The limit may have cut a character of several bytes: the grammar ends it first.
    rest = shortest_completion(root, bytes(text), words=words)
    return None if rest is None else bytes(text) + rest
