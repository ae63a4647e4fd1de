"""Frames over a socket, both ways: nobody who writes ever waits.

What lives here: `Channel`, and how tokens of one job that wait for the wire become one message.
What does not: what frames say (`wire.py`).

A frame is its length in four bytes (big-endian), then its bytes. What is put while a frame is
being written goes out together in the next: under load there are few frames, and each token's
share of their cost falls.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from phloem.runtime.engine.messages import Progress
from phloem.runtime.host.wire import FromChild, Reply

__all__ = ["Channel", "coalesced"]

T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 20


class Channel(Generic[T]):
    """One end. `encode` makes a frame of the messages that wait."""

    def __init__(self, sock: socket.socket, encode: Callable[[Sequence[T]], bytes]) -> None:
        self._socket = sock
        self._encode = encode
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="phloem-host-write", daemon=True)
        self._writer.start()

    def put(self, message: T) -> None:
        """Send soon. From any thread; after the other end has gone it does nothing."""
        self._queue.put(message)

    def frames(self) -> Iterator[bytes]:
        """Each frame that comes, until the other end has gone. Blocks; for one thread, whose
        reading is what keeps the channel open."""
        try:
            while (head := self._read(_LENGTH.size)) is not None:
                frame = self._read(_LENGTH.unpack(head)[0])
                if frame is None:
                    return
                yield frame
        finally:
            self.close()
            self._writer.join()
            self._socket.close()

    def finish(self, timeout: float) -> None:
        """Send what waits."""
        self._queue.put(None)
        self._writer.join(timeout)

    def close(self) -> None:
        """End reading and writing, on both sides."""
        with contextlib.suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._queue.put(None)

    def _read(self, size: int) -> bytes | None:
        """Exactly `size` bytes, or None at the end."""
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(min(size - len(parts), _CHUNK))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _write(self) -> None:
        going = True
        while going:
            waiting = [self._queue.get()]
            try:
                while True:
                    waiting.append(self._queue.get_nowait())
            except queue.Empty:
                pass
            going = None not in waiting
            frame = self._encode([message for message in waiting if message is not None])
            try:
                self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            except OSError:
                return


def coalesced(messages: Sequence[FromChild]) -> list[FromChild]:
    """The same messages, where each job's progress is one."""
    found: list[FromChild] = []
    places: dict[int, int] = {}
    for message in messages:
        if not isinstance(message, Reply):
            found.append(message)
            continue
        place = places.get(message.job)
        earlier = found[place] if place is not None else None
        if (
            place is not None
            and isinstance(earlier, Reply)
            and isinstance(earlier.message, Progress)
            and isinstance(message.message, Progress)
        ):
            joined = earlier.message.event + message.message.event
            found[place] = Reply(message.job, Progress(joined, message.message.base))
        else:
            places[message.job] = len(found)
            found.append(message)
    return found
