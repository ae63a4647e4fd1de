"""One connection of a pair.

What lives here: `Side`, a connection whose events are its link's and whose pace is its peer's.
What does not: what a link does with them (`link.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import cast

__all__ = ["Side"]

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing sends a reset."""


class Side(asyncio.Protocol):
    """A connection. `opened`, `sent`, `ended` (it sends no more) and `lost` (it is closed) are
    called as it happens. While the other side reads too slowly this one is not read."""

    def __init__(
        self,
        opened: Callable[[], None],
        sent: Callable[[bytes], None],
        ended: Callable[[], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._on_opened, self._on_sent, self._on_ended, self._on_lost = opened, sent, ended, lost
        self._transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.ended = False

    # --- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        # uvloop's transports have the methods but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._on_opened()

    def data_received(self, data: bytes) -> None:
        """It has sent something."""
        self._on_sent(data)

    def eof_received(self) -> bool:
        """It sends no more, but may still read."""
        self.ended = True
        self._on_ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._transport = None
        self.ended = True
        self._on_lost(exc)

    def pause_writing(self) -> None:
        """It reads too slowly: the other side must wait."""
        if self.other is not None:
            self.other.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.other is not None:
            self.other.resume()

    # --- what the link calls

    @property
    def _open(self) -> asyncio.Transport | None:
        found = self._transport
        return None if found is None or found.is_closing() else found

    def peer(self) -> str:
        """The other end's address."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""

    def write(self, data: bytes) -> None:
        """Send to it."""
        if (transport := self._open) is not None:
            transport.write(data)

    def pause(self) -> None:
        """Read no more from it for now."""
        if (transport := self._open) is not None and transport.is_reading():
            transport.pause_reading()

    def resume(self) -> None:
        """Read from it again."""
        if (transport := self._open) is not None and not transport.is_reading():
            transport.resume_reading()

    def end(self) -> None:
        """Send no more to it. A TLS connection can't say that, so it is closed."""
        if (transport := self._open) is None:
            return
        if not transport.can_write_eof():
            transport.close()
            return
        with contextlib.suppress(OSError):  # the peer cut it in this moment
            transport.write_eof()

    def close(self) -> None:
        """Close it when all is sent."""
        if (transport := self._open) is not None:
            transport.close()

    def reset(self) -> None:
        """Close it with a reset, unless something is still to be sent."""
        if (transport := self._open) is None:
            return
        if transport.get_write_buffer_size():
            transport.close()
            return
        own = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the peer cut it in this moment
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
