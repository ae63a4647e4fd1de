"""Traces in a terminal: a line for each exchange, a tree for each run, as they end.

What lives here: `PrettySink`. What does not: the tree itself (`server/trace/show.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from phloem.server.trace.record import exchange_from_json, run_from_json
from phloem.server.trace.show import exchange_line, run_tree
from phloem.server.trace.sinks.base import Document, Sink

__all__ = ["PrettySink"]


class PrettySink(Sink):
    """Prints to `console` (default: standard output). A terminal that stands still stops this
    sink's thread and nothing else."""

    name = "stdout"

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(highlight=False, markup=False, emoji=False)

    def keep(self, batch: Sequence[Document]) -> None:
        """Print them."""
        for document in batch:
            plain = {name: value for name, value in document.items() if name != "document"}
            if document["document"] == "exchange":
                self._console.print(exchange_line(exchange_from_json(plain)))
            else:
                self._console.print(run_tree(run_from_json(plain)))
