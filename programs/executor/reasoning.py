"""Telling a reasoning block and an answer apart.

What lives here: `apart`. What does not: which models write which marks (`api/roles.py`).
"""

from __future__ import annotations

__all__ = ["apart"]


def apart(text: str, marks: tuple[str, str] | None) -> tuple[str, str]:
    """(answer, reasoning): the block between the marks is the reasoning. An opening mark may
    be missing (templates put it into the prompt), a closing one that is missing leaves all
    after the opening one reasoning."""
    if marks is None:
        return text, ""
    opening, closing = marks
    before, opened, rest = text.partition(opening)
    if not opened:
        before, rest = "", text
    reasoning, closed, answer = rest.partition(closing)
    if closed:
        return before + answer.lstrip("\n"), reasoning.strip("\n")
    return (before, reasoning.strip("\n")) if opened else (text, "")
