"""What all sinks share: a bounded queue and a thread of its own.

What lives here: `Sink`. What does not: keeping anything (each sink's own module).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import structlog

__all__ = ["Document", "Sink"]

log = structlog.get_logger("phloem.trace")

Document = dict[str, Any]
"""An exchange or a run as JSON; `document` says which: "exchange" or "run"."""

BATCH = 500


class Sink(ABC):
    """Keeps documents in a thread of its own, so that one that is slow or dead stops neither
    the others nor the recorder. Of more than `room` waiting documents the oldest are dropped.

    `kept`, `dropped` and `failed` count documents.
    """

    name: str

    def __init__(self, room: int = 10_000) -> None:
        self.kept = self.dropped = self.failed = 0
        self._waiting: deque[Document] = deque()
        self._room = room
        self._busy = False
        self._closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name=f"sink-{self.name}", daemon=True)

    def start(self) -> None:
        """Begin to keep documents."""
        self._thread.start()

    def put(self, document: Document) -> None:
        """Take a document; never waits."""
        with self._news:
            self._waiting.append(document)
            if len(self._waiting) > self._room:
                self._waiting.popleft()
                self.dropped += 1
                if self.dropped & (self.dropped - 1) == 0:  # 1, 2, 4, 8, ...
                    log.warning("sink_full", sink=self.name, dropped=self.dropped)
            self._news.notify()

    def close(self, seconds: float) -> bool:
        """Keep what waits, for at most that long. Whether all was kept."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        elif self._thread.ident is None:  # never started
            self.finish()
        return not self._thread.is_alive() and not self._waiting

    def _serve(self) -> None:
        while True:
            with self._news:
                while not self._waiting and not self._closing:
                    self._news.wait()
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            if not batch:
                break
            self._try(batch)
        self.finish()

    def _try(self, batch: Sequence[Document]) -> None:
        try:
            self.keep(batch)
        except Exception as error:  # noqa: BLE001 - whatever a sink's library raises is told
            self.failed += len(batch)
            log.error("sink_failed", sink=self.name, lost=len(batch), reason=str(error))
        else:
            self.kept += len(batch)

    @abstractmethod
    def keep(self, batch: Sequence[Document]) -> None:
        """Keep these; called in the sink's thread. What it raises is logged and counted."""

    def finish(self) -> None:
        """Let go of files and connections; called in the sink's thread, last."""
        return
