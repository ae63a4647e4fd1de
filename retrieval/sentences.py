"""Where sentences end.

What lives here: the borders of sentences in plain text. What does not: packing them into chunks
(`ingest/chunks.py`) or into a prompt (`programs/api/passages.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Span", "sentence_spans"]

Span = tuple[int, int]
"""A half-open interval of characters."""

# Closing quotes and brackets belong to the sentence they close.
_BORDER = re.compile(
    r"""
    [.!?\u2026]+ ["'\u201d\u2019)\]]* \s+           # a full stop and the like, then white space
    | [\u3002\uff01\uff1f]+ [\u201d\u2019\u300d\u300f\uff09]* \s*   # the same in Chinese, Japanese
    | \n\s*\n\s*                                    # a blank line
    | \n (?= \s* (?: [-*+\u2022] | \d+[.)] ) \s )   # before an item of a list
    """,
    re.VERBOSE,
)
_ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|No|Nos|vs|etc|cf|ca|al|Fig|Eq|Sec|Ch|Vol|pp|p|Inc|Ltd|Co"
    r"|approx|e\.g|i\.e|z\.B|d\.h|[A-Z])\.\s*$"
)


def sentence_spans(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences of `text[start:end]`, without white space around them.

    A sentence ends at a full stop, question or exclamation mark before white space, at a blank
    line, and before a list item; not after common abbreviations and initials, nor where the
    next word starts in lower case.
    """
    begin = start
    for border in _BORDER.finditer(text, start, end):
        if border.end() >= end or not _ends_sentence(text, border, begin):
            continue
        yield from _stripped(text, begin, border.end())
        begin = border.end()
    yield from _stripped(text, begin, end)


def _ends_sentence(text: str, border: re.Match[str], begin: int) -> bool:
    if not border[0].lstrip().startswith((".", "!", "?", "\u2026")):
        return True
    if "\n\n" in border[0]:
        return True
    if text[border.end()].islower():
        return False
    before = text[max(begin, border.start() - 12) : border.end()]
    return not (border[0][0] == "." and _ABBREVIATION.search(before))


def _stripped(text: str, start: int, end: int) -> Iterator[Span]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start < end:
        yield start, end
