"""Verbatim spans: the constraint that a text is quoted from given passages, and where from.

What lives here: the grammar (llguidance has a substring automaton) and the way back to document
and offsets. What does not: retrieval.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from phloem.errors import ConstraintError
from phloem.grammar.spec import Constraint, Span

__all__ = ["locate", "quote_constraint"]


def quote_constraint(passages: Sequence[tuple[str, str]], *, max_chars: int = 600) -> Constraint:
    """The constraint that a text is a run of whole words of one of the passages.

    `passages` are pairs of document id and text. The quote is not empty, has no white space at
    its ends, and at most `max_chars` characters. Raises `ConstraintError` if nothing is there to
    be quoted.
    """
    texts = [text for _, text in passages if text.strip()]
    if not texts:
        raise ConstraintError("there is no passage to quote from", hint="retrieve some first")
    names = [f"PASSAGE{index}" for index in range(len(texts))]
    rules = [
        f"{name}: %regex {json.dumps({'substring_words': text}, ensure_ascii=False)}\n"
        for name, text in zip(names, texts, strict=True)
    ]
    size = rf"/\S((?s:.){{0,{max_chars - 2}}}\S)?/"
    return Constraint(
        "lark", f"start: QUOTE\nQUOTE: ({' | '.join(names)}) & {size}\n" + "".join(rules)
    )


def locate(passages: Sequence[tuple[str, str]], quote: str) -> tuple[Span, ...]:
    """Every place in the passages where `quote` stands, in their order."""
    if not quote:
        return ()
    spans = []
    for document, text in passages:
        start = text.find(quote)
        while start >= 0:
            spans.append(Span(document, start, start + len(quote)))
            start = text.find(quote, start + 1)
    return tuple(spans)
