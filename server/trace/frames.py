"""What the relay tells the recorder: bytes as they passed, each with its time.

What lives here: the frames and their form on the socket between the two processes. What does
not: who writes them (`relay/tap.py`) and what is made of them (`recorder/`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Frame", "FrameReader", "Kind", "encode"]

_HEADER = struct.Struct("!BQdI")


class Kind(IntEnum):
    """What a frame tells. HEAD begins a request (all bytes of its head, as the client sent
    them); REQUEST and RESPONSE are the bytes that follow, in pieces as they came."""

    OPEN = 1  # payload: the client's address
    CONNECTED = 2  # payload: milliseconds to connect, as text
    HEAD = 3
    REQUEST = 4
    RESPONSE = 5
    UNREACHABLE = 6  # payload: why the upstream could not be connected
    CLIENT_GONE = 7
    UPSTREAM_GONE = 8
    LOST = 9  # the recorder was too slow: frames are missing here
    CLOSED = 10


@dataclass(frozen=True, slots=True)
class Frame:
    """One of them. `link` numbers the client's connection, `at` is seconds since the epoch."""

    kind: Kind
    link: int
    at: float
    payload: bytes = b""


def encode(kind: Kind, link: int, at: float, payload: bytes = b"") -> bytes:
    """A frame on the socket: kind, link, time, length, payload."""
    return _HEADER.pack(kind, link, at, len(payload)) + payload


class FrameReader:
    """Frames out of a byte stream that is cut anywhere."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now."""
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= _HEADER.size:
            kind, link, at, length = _HEADER.unpack_from(self._buffer, position)
            end = position + _HEADER.size + length
            if end > len(self._buffer):
                break
            yield Frame(Kind(kind), link, at, bytes(self._buffer[position + _HEADER.size : end]))
            position = end
        del self._buffer[:position]
