"""Where requests begin in a client's bytes, and the one thing the relay changes in them.

What lives here: `RequestFraming`, which follows a connection's requests with h11, and the
rewriting of a request's head: `Host` names the upstream, and the upstream's own path goes in
front of the target. Every other byte stays. What does not: responses (the relay never looks
into them) and recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import h11

__all__ = ["RequestFraming", "Upstream"]

MAX_HEAD = 64 * 1024
"""A longer head is passed on as it is."""

_HOST = re.compile(rb"(\r\n[Hh][Oo][Ss][Tt]:[ \t]*)[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server behind the proxy. `prefix` is its path without the last slash."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """What `Host` names; the scheme's own port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Its address, without credentials."""
        return f"http{'s' if self.tls else ''}://{self.authority}{self.prefix}"

    def rewrite(self, head: bytes) -> bytes:
        """A request's head for this upstream."""
        head = _HOST.sub(lambda found: found[1] + self.authority.encode(), head, count=1)
        if self.prefix:
            method, space, rest = head.partition(b" ")
            if rest.startswith(b"/"):
                head = method + space + self.prefix.encode() + rest
        return head


class RequestFraming:
    """Splits a client's bytes into the heads of requests and all the rest.

    What h11 can't follow (another protocol after an upgrade, a malformed request, a head that is
    too long) is rest from there on: the upstream answers it as it would without a proxy.
    """

    def __init__(self) -> None:
        self._parser: h11.Connection | None = _parser()
        self._held = bytearray()
        """Bytes that were not handed out yet; the last ones the parser has not seen either."""
        self._seen = 0
        self._in_body = False

    def split(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """(whether it is a head, bytes) of what can go on now, in order. Only a head that is not
        whole yet is held back."""
        self._held += data
        while self._held:
            try:
                event = self._advance()
            except h11.RemoteProtocolError:
                self._parser = event = None
            if event is None or event is h11.NEED_DATA:
                if event is None or self._in_body:
                    yield False, self._take(len(self._held))
                return
            assert self._parser is not None
            is_head = isinstance(event, h11.Request)
            if passed := self._take(len(self._held) - len(self._parser.trailing_data[0])):
                yield is_head, passed
            self._in_body = is_head
            if not is_head:
                self._parser, self._seen = _parser(), 0

    def _advance(self) -> object:
        """The next border of a message, NEED_DATA before it, or None: HTTP is over."""
        if self._parser is None:
            return None
        if not self._in_body and not self._held[:1].isalpha() and self._held[:1] not in b"\r\n":
            self._parser = None
            return None
        if fresh := bytes(self._held[self._seen :]):
            self._parser.receive_data(fresh)
            self._seen = len(self._held)
        event = self._parser.next_event()
        while isinstance(event, h11.Data):
            event = self._parser.next_event()
        return event

    def _take(self, count: int) -> bytes:
        taken = bytes(self._held[:count])
        del self._held[:count]
        self._seen = max(0, self._seen - count)
        return taken


def _parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
