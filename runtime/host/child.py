"""The engine's process: `python -m phloem.runtime.host.child FD`, started by `process.py`.

What lives here: its life, from the first message to the last. What does not: loading the model and
doing the work (`desk.py`, imported by a thread: torch comes with it, and pings are answered
meanwhile). The parent decides whether this process lives; it only ends with its parent.

Signals that stop a service (SIGTERM, SIGINT) reach the whole process group, but how to stop is for
the parent to say; so they are ignored here. The parent's end shows as the end of the socket, and on
Linux kills this process even if it hangs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import Protocol

from phloem.errors import EngineError, PhloemError
from phloem.runtime.host import wire
from phloem.runtime.host.channel import Channel, coalesced
from phloem.surrogates import spelled

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_STOP_S = 5.0


class Desk(Protocol):
    """What `desk.py` makes of the first message."""

    ready: wire.Ready

    def take(self, message: wire.Submit | wire.Cancel | wire.Expect | wire.Prepare) -> None:
        """Do it; never waits."""
        ...

    def answer(self, ping: wire.Ping) -> None:
        """Put the pong into the channel, once the engine's thread has come by."""
        ...

    def stop(self) -> None:
        """End all jobs and the engine."""
        ...


class Child:
    """One engine for one parent."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel: Channel[wire.FromChild] = Channel(
            sock, lambda messages: wire.encode_from_child(coalesced(messages))
        )
        self._desk: Desk | None = None

    def serve(self) -> None:
        """Do what the parent asks until it says stop or is gone."""
        for frame in self._channel.frames():
            for message in wire.decode_to_child(frame):
                if isinstance(message, wire.Stop):
                    self._stop()
                    return
                self._take(message)
        # Nobody is left to hear of anything, and threads may hang in native code.
        os._exit(1)

    def _take(self, message: wire.ToChild) -> None:
        desk = self._desk
        match message:
            case wire.Load():
                root = logging.getLogger()
                root.addHandler(_Forward(self._channel))
                root.setLevel(message.log_level)
                threading.Thread(target=self._load, args=(message,), daemon=True).start()
            case wire.Ping():
                if desk is None:
                    self._channel.put(wire.Pong(message.number, None))
                else:
                    desk.answer(message)
            case wire.Submit() | wire.Cancel() | wire.Expect() | wire.Prepare():
                assert desk is not None, "work was asked for before the engine was ready"
                desk.take(message)

    def _load(self, load: wire.Load) -> None:
        """On a thread of its own. What is made here stays to the end of the process, so no garbage
        collection has to look through it: not while it grows, and not in a pause of the engine."""
        gc.disable()
        try:
            self._channel.put(wire.Loading("importing the engine"))
            make = importlib.import_module("phloem.runtime.host.desk").make_desk
            self._desk = desk = make(load, self._channel)
        except PhloemError as error:
            self._channel.put(wire.LoadFailed(wire.ErrorRecord.of(error)))
        except Exception as error:
            logging.getLogger(__name__).exception("the engine could not be made")
            failed = EngineError(f"the engine could not be made: {error!r}", hint="see the log")
            self._channel.put(wire.LoadFailed(wire.ErrorRecord.of(failed)))
        else:
            gc.freeze()
            gc.enable()
            self._channel.put(desk.ready)

    def _stop(self) -> None:
        if self._desk is not None:
            self._desk.stop()
        self._channel.finish(_STOP_S)


class _Forward(logging.Handler):
    """Log lines for the parent."""

    def __init__(self, channel: Channel[wire.FromChild]) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        try:
            text = self.format(record)
        except (TypeError, ValueError):  # arguments that do not fit the line
            self.handleError(record)
        else:
            self._channel.put(wire.Log(record.name, record.levelno, spelled(text)))


def main() -> None:
    """Serve the parent at the other end of the file descriptor in the first argument."""
    faulthandler.enable()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Child(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
