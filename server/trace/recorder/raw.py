"""One exchange as it passed: heads, the beginning of each body, and times.

What lives here: `RawExchange`, filled by `links.py`. What does not: what bodies mean.
"""

from __future__ import annotations

import contextlib
import secrets
import zlib
from dataclasses import dataclass, field

__all__ = ["RawBody", "RawExchange"]

MAX_GAPS = 5000


@dataclass(slots=True)
class RawBody:
    """The first `limit` bytes of a body (chunks joined, content coding kept) and its size."""

    limit: int
    size: int = 0
    data: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """The next piece."""
        self.size += len(data)
        if room := self.limit - len(self.data):
            self.data += data[:room]

    @property
    def cut(self) -> bool:
        """Whether `data` is not all of it."""
        return self.size > len(self.data)

    def decoded(self, coding: str) -> bytes | None:
        """The bytes without their content coding, at most `limit` of them; None if the coding
        is none we know."""
        if coding in {"", "identity"}:
            return bytes(self.data)
        if coding not in {"gzip", "x-gzip", "deflate"}:
            return None
        # 32 added: gzip and zlib headers are told apart by zlib. Some send "deflate" without one.
        for wbits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
            with contextlib.suppress(zlib.error):
                return zlib.decompressobj(wbits).decompress(bytes(self.data), self.limit)
        return None


@dataclass(slots=True)
class RawExchange:
    """Headers are pairs of texts, names in lower case. Times are seconds since the epoch.

    `complete` says that the response came to its end. `gone` is who went first, "client" or
    "upstream", if anybody did before that. `problem` says what is missing, and why.
    """

    client: str
    started: float
    method: str
    target: str
    request_headers: list[tuple[str, str]]
    request: RawBody
    response: RawBody
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    connect_ms: float | None = None
    status: int = 0
    response_headers: list[tuple[str, str]] = field(default_factory=list)
    first_byte: float | None = None
    ended: float | None = None
    pieces: list[float] = field(default_factory=list)
    complete: bool = False
    gone: str | None = None
    unreachable: str | None = None
    problem: str | None = None

    def header(self, name: str, *, response: bool = False) -> str:
        """The first header of that name, or ""."""
        headers = self.response_headers if response else self.request_headers
        return next((value for key, value in headers if key == name), "")

    def piece(self, at: float) -> None:
        """Body bytes of the response came at this time."""
        if len(self.pieces) < MAX_GAPS and (not self.pieces or self.pieces[-1] != at):
            self.pieces.append(at)
