"""A quotation and where it is from.

What lives here: `Quote`. What does not: finding the places (the analyser's `locate`).
"""

from __future__ import annotations

from phloem.grammar.spec import Span

__all__ = ["Quote"]


class Quote(str):
    """A text copied from a document: equal to its text, and knows its places.

    `spans` are all places where it stands in the passages, in their order; `document`, `start`
    and `end` are those of the first (None if there is none: the text was cut).
    """

    __slots__ = ("spans",)
    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: tuple[Span, ...]) -> Quote:
        """A quotation of `text` with its places."""
        made = super().__new__(cls, text)
        made.spans = spans
        return made

    @property
    def document(self) -> str | None:
        """Id of the document."""
        return self.spans[0].document if self.spans else None

    @property
    def start(self) -> int | None:
        """Where it begins in the document's text, in characters."""
        return self.spans[0].start if self.spans else None

    @property
    def end(self) -> int | None:
        """Where it ends, exclusive."""
        return self.spans[0].end if self.spans else None
