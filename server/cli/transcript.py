"""The text of a run as it comes: each step's name, then its text, token by token.

What lives here: what `phloem run` shows while a program runs, and where a quotation is from. What
does not: the trace table (`table.py`).
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from phloem.programs.events import Event, Retrieved, StepFinished, Token
from phloem.programs.quoted import Quote

__all__ = ["Transcript"]

_AROUND = 60
"""Characters of a passage that are shown on each side of a quotation."""


class Transcript:
    """Writes events to a console as they come.

    Text of parallel branches interleaves: whenever another step goes on, a new line opens
    with that step's branch and name.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open: tuple[str, str | None] | None = None
        self._texts: dict[str, str] = {}

    def show(self, event: Event) -> None:
        """Show `event` if a reader wants to see it."""
        if isinstance(event, Token):
            self._text(event.path, event.name, event.text)
        elif isinstance(event, StepFinished):
            if event.kind != "gen":
                self._text(event.path, event.name, event.text)
            if self._open == (event.path, event.name):
                self.close()
            if isinstance(event.value, Quote):
                self._quotation(event.value)
        elif isinstance(event, Retrieved):
            self._texts |= {hit["id"]: hit["text"] for hit in event.hits}
            titles = ", ".join(str(hit.get("title") or hit["id"]) for hit in event.hits)
            found = titles or f"nothing in index {event.index}"
            self._text(event.path, event.name or "retrieve", found)
            self.close()

    def close(self) -> None:
        """End an open line."""
        if self._open is not None:
            self._console.print()
            self._console.file.flush()
            self._open = None

    def _quotation(self, quote: Quote) -> None:
        """Where `quote` is from: document, offsets, and the passage with the quotation marked (by
        colour in a terminal, else by asterisks)."""
        for span in quote.spans[:1]:
            line = Text(f"  from {span.document}, characters {span.start} to {span.end}", "dim")
            text = self._texts.get(span.document)
            if text is not None:
                before = text[max(0, span.start - _AROUND) : span.start]
                after = text[span.end : span.end + _AROUND]
                coloured = self._console.color_system and not self._console.no_color
                marks = "" if coloured else "**"
                line.append(": " + ("…" if span.start > _AROUND else "") + _one_line(before))
                marked = marks + _one_line(text[span.start : span.end]) + marks
                line.append(marked, "not dim bold black on yellow")
                line.append(_one_line(after) + ("…" if span.end + _AROUND < len(text) else ""))
            self._console.print(line, soft_wrap=True)

    def _text(self, path: str, name: str | None, text: str) -> None:
        if self._open != (path, name):
            self.close()
            label = f"[{path}] {name or 'text'}: " if path else f"{name or 'text'}: "
            self._console.print(Text(label, style="bold cyan"), end="")
            self._open = (path, name)
        self._console.print(Text(text), end="", soft_wrap=True)
        self._console.file.flush()


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
