"""The recorder's process: frames from the relay in, documents to the sinks.

What lives here: `record`, the process's main function. What does not: traffic; whatever happens
here, the relay goes on.

The process runs at a lower priority than the relay, ends when the relay closes the socket, and
then keeps what is on its way for at most `drain_s`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

import structlog

from phloem.errors import PhloemError
from phloem.server.http.logs import configure_logging
from phloem.server.trace.frames import Frame, FrameReader, Kind
from phloem.server.trace.options import Options
from phloem.server.trace.recorder.exchange import Reading
from phloem.server.trace.recorder.follow import Follower
from phloem.server.trace.recorder.links import LinkReader
from phloem.server.trace.recorder.raw import RawExchange
from phloem.server.trace.recorder.redact import Redactor, environment_secrets
from phloem.server.trace.sinks.base import Sink
from phloem.server.trace.sinks.opened import open_sink

__all__ = ["record", "secrets_of"]

log = structlog.get_logger("phloem.trace")

PIECE = 256 * 1024


def secrets_of(options: Options) -> list[str]:
    """What must never be seen: secrets of the environment, and the sinks' addresses, which may
    hold passwords."""
    found = environment_secrets(os.environ)
    addresses = {f"SINK_{at}": sink.address for at, sink in enumerate(options.sinks)}
    return [*found, *environment_secrets(addresses)]


def record(sock: socket.socket, options: Options) -> None:
    """Record until the other end of `sock` is closed."""
    # A signal from the terminal reaches both processes; the relay decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(10)
    configure_logging(options.log_level, secrets_of(options))
    asyncio.run(_record(sock, options))


async def _record(sock: socket.socket, options: Options) -> None:
    redactor = Redactor(secrets_of(options), options.redact)
    sinks = []
    for spec in options.sinks:
        try:
            sinks.append(open_sink(spec, options))
        except PhloemError as error:
            log.error("sink_not_opened", kind=spec.kind, reason=error.message)
    for sink in sinks:
        sink.start()
    recorder = Recorder(sinks, redactor, options)
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=PIECE)
    frames = FrameReader()
    while data := await reader.read(PIECE):
        for frame in frames.feed(data):
            recorder.take(frame)
    writer.close()
    await recorder.close()


class Recorder:
    """Makes documents of frames and gives them to the sinks."""

    def __init__(self, sinks: Sequence[Sink], redactor: Redactor, options: Options) -> None:
        self._sinks = sinks
        self._options = options
        self._links: dict[int, LinkReader] = {}
        self._reading = Reading(redactor, options.upstream.url, options.bodies)
        self._follower = Follower(
            options.upstream.url, redactor, self.keep, bodies=options.bodies > 0
        )
        self.exchanges = self.incomplete = 0

    def take(self, frame: Frame) -> None:
        """A frame of the relay."""
        link = self._links.get(frame.link)
        if link is None:
            link = self._links[frame.link] = LinkReader(self._options.max_body)
        for raw in link.feed(frame):
            self._exchange(raw)
        if frame.kind is Kind.CLOSED:
            del self._links[frame.link]

    def _exchange(self, raw: RawExchange) -> None:
        self.exchanges += 1
        if raw.problem is not None:
            self.incomplete += 1
            log.warning("exchange_incomplete", id=raw.id, reason=raw.problem)
        self.keep({"document": "exchange", **self._reading.read(raw)})
        self._follower.saw(raw)

    def keep(self, document: dict[str, Any]) -> None:
        """Give a document to every sink."""
        for sink in self._sinks:
            sink.put(document)

    async def close(self) -> None:
        """Keep what is on its way, then say what was done."""
        seconds = self._options.drain_s
        await self._follower.close(seconds / 2)
        for sink in self._sinks:
            done = await asyncio.to_thread(sink.close, seconds)
            log.info(
                "sink_closed",
                sink=sink.name,
                kept=sink.kept,
                dropped=sink.dropped,
                failed=sink.failed,
                complete=done,
            )
        log.info("recorder_closed", exchanges=self.exchanges, incomplete=self.incomplete)
