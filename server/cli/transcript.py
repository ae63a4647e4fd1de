"""The text of a run as it comes: each step's name, then its text, token by token.

What lives here: what `phloem run` shows while a program runs. What does not: the trace table
(`table.py`).
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from phloem.programs.events import Event, Retrieved, StepFinished, Token

__all__ = ["Transcript"]


class Transcript:
    """Writes events to a console as they come.

    Text of parallel branches interleaves: whenever another step goes on, a new line opens
    with that step's branch and name.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open: tuple[str, str | None] | None = None

    def show(self, event: Event) -> None:
        """Show `event` if a reader wants to see it."""
        if isinstance(event, Token):
            self._text(event.path, event.name, event.text)
        elif isinstance(event, StepFinished):
            if event.kind != "gen":
                self._text(event.path, event.name, event.text)
            if self._open == (event.path, event.name):
                self.close()
        elif isinstance(event, Retrieved):
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

    def _text(self, path: str, name: str | None, text: str) -> None:
        if self._open != (path, name):
            self.close()
            label = f"[{path}] {name or 'text'}: " if path else f"{name or 'text'}: "
            self._console.print(Text(label, style="bold cyan"), end="")
            self._open = (path, name)
        self._console.print(Text(text), end="", soft_wrap=True)
        self._console.file.flush()
