"""Halves of surrogate pairs: what Python's texts may hold and no encoding can write.

What lives here: finding one, and spelling them out. What does not: whether one is refused, which is
the border's business, with its own error and remedy. Such texts come from file names and from
`\\ud800` in JSON.
"""

from __future__ import annotations

__all__ = ["half_of_pair", "spelled"]


def half_of_pair(text: str) -> str | None:
    """The first half of a surrogate pair in `text`, spelled out (`\\ud800`), or None."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return f"\\u{ord(text[error.start]):04x}"
    return None


def spelled(text: str) -> str:
    """`text`, with what no encoding can write spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
