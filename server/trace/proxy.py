"""The trace proxy as a whole: the relay here, the recorder in a process of its own.

What lives here: `TraceProxy` (start, watch over the recorder, stop) and `serve`, which
`phloem trace-proxy` calls. What does not: traffic (`relay/`) and recording (`recorder/`).

Two processes, because Python's threads share one lock: while bodies are parsed and sinks fail,
the relay's loop must not wait. A recorder that dies is started again; the traffic never notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import socket
import ssl
from multiprocessing.process import BaseProcess

import structlog
import uvloop

from phloem.server.http.logs import configure_logging
from phloem.server.trace.options import Options
from phloem.server.trace.recorder.process import record, secrets_of
from phloem.server.trace.relay.relay import Relay
from phloem.server.trace.relay.tap import Tap
from phloem.server.trace.sinks.opened import open_sink

__all__ = ["TraceProxy", "serve"]

log = structlog.get_logger("phloem.trace")

RESTART_S = 1.0


class TraceProxy:
    """A running proxy; `async with` starts and stops it. `port` is where it listens."""

    def __init__(
        self,
        options: Options,
        *,
        listener: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._options = options
        self._listener = listener
        self._tls = tls
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False
        self.recorder: BaseProcess | None = None
        self.port = 0

    async def __aenter__(self) -> TraceProxy:
        """Listen; raises `ConfigError` for an address that can't be used."""
        options = self._options
        self.tap = Tap()
        self.relay = Relay(options.upstream, self.tap, self._tls)
        self.port = await self.relay.listen(options.host, options.port, self._listener)
        await self._start_recorder()
        self._watching = asyncio.ensure_future(self._watch())
        log.info("listening", host=options.host, port=self.port, upstream=options.upstream.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let connections end, then the recorder."""
        await self.relay.close(self._options.grace_s)
        self._stopping = True
        self.tap.close()
        await self._end_recorder()
        if self.tap.lost:
            log.warning("requests_not_recorded", lost=self.tap.lost)

    async def _start_recorder(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # A new interpreter: a fork would copy the loop, and every open connection with it.
        context = multiprocessing.get_context("spawn")
        self.recorder = context.Process(
            target=record, args=(theirs, self._options), name="phloem-recorder", daemon=True
        )
        self.recorder.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.tap, sock=ours)

    async def _end_recorder(self) -> None:
        """Wait until it has kept what is on its way; not for ever."""
        assert self._watching is not None
        assert self.recorder is not None
        limit = 2 * self._options.drain_s + 5
        done, _ = await asyncio.wait({self._watching}, timeout=limit)
        if not done:
            log.error("recorder_not_drained", after_s=limit)
            self.recorder.kill()
        await self._watching

    async def _watch(self) -> None:
        """Start the recorder again whenever it dies before its time."""
        while True:
            assert self.recorder is not None
            await asyncio.to_thread(self.recorder.join)
            if self._stopping:
                return
            log.error("recorder_died", exit_code=self.recorder.exitcode)
            await asyncio.sleep(RESTART_S)
            await self._start_recorder()


async def _serve(options: Options) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with TraceProxy(options):
        await stop.wait()
        with contextlib.suppress(NotImplementedError):
            # A second signal ends the process at once.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def serve(options: Options) -> None:
    """Run a proxy until a stop signal. Raises `ConfigError`, before anything listens."""
    for spec in options.sinks:
        open_sink(spec, options).close(0)
    configure_logging(options.log_level, secrets_of(options))
    uvloop.run(_serve(options))
