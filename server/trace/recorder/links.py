"""Following one client's connection: frames in, exchanges out.

What lives here: `LinkReader`, which parses both directions with h11. What does not: the traffic
(it has passed already) and the meaning of bodies (`exchange.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import h11

from phloem.server.trace.frames import Frame, Kind
from phloem.server.trace.recorder.raw import RawBody, RawExchange

__all__ = ["LinkReader"]

MAX_HEAD = 256 * 1024


class LinkReader:
    """The exchanges of one connection, in order. Bodies are kept up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._client = ""
        self._connect_ms: float | None = None
        self._unreachable: str | None = None
        self._open: deque[_Following] = deque()
        """Requests whose response is not over, oldest first."""
        self._skipping = False

    def feed(self, frame: Frame) -> Iterator[RawExchange]:
        """The exchanges that are over with this frame."""
        self._take(frame)
        while self._open and self._open[0].over:
            yield self._open.popleft().raw

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.OPEN | Kind.CONNECTED | Kind.UNREACHABLE:
                self._connecting(frame.kind, frame.payload.decode())
            case Kind.HEAD:
                self._skipping = False
                self._begin(frame)
            case Kind.REQUEST if self._open and not self._skipping:
                self._open[-1].request(frame.payload)
            case Kind.RESPONSE if not self._skipping:
                self._respond(frame)
            case Kind.CLIENT_GONE | Kind.UPSTREAM_GONE:
                self._gone(frame)
            case Kind.LOST:
                self._skipping = True
                for following in self._open:
                    following.stop("the recorder was too slow", frame.at)
            case Kind.CLOSED:
                for following in self._open:
                    following.close(frame.at)

    def _connecting(self, kind: Kind, told: str) -> None:
        """How the connection was made; the first request may be there before that is known."""
        if kind is Kind.OPEN:
            self._client = told
        elif kind is Kind.UNREACHABLE:
            self._unreachable = told
            for following in self._open:
                following.raw.unreachable = told
        elif self._open:
            self._open[0].raw.connect_ms = float(told)
        else:
            self._connect_ms = float(told)

    def _begin(self, frame: Frame) -> None:
        following = _Following.of(frame, self._client, self._limit)
        if following is None:
            return
        following.raw.connect_ms, self._connect_ms = self._connect_ms, None
        following.raw.unreachable = self._unreachable
        self._open.append(following)

    def _respond(self, frame: Frame) -> None:
        data = frame.payload
        for following in self._open:
            data = following.response(data, frame.at)
            if not data:
                return

    def _gone(self, frame: Frame) -> None:
        who = "client" if frame.kind is Kind.CLIENT_GONE else "upstream"
        for following in self._open:
            following.raw.gone = following.raw.gone or who
        if who == "upstream" and self._open:
            self._open[0].response(b"", frame.at)


class _Following:
    """One exchange that is not over. `over` once nothing of it will come."""

    def __init__(self, raw: RawExchange, requests: h11.Connection, request: h11.Request) -> None:
        self.raw = raw
        self.over = False
        self._requests: h11.Connection | None = requests
        self._responses = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        # The parser of a response must know what was asked (HEAD, CONNECT, an upgrade). The
        # host is given again because old clients leave it out.
        wanted = [(name, value) for name, value in request.headers if name == b"upgrade"]
        headers = [(b"host", b"upstream"), *wanted, *([(b"connection", b"upgrade")] * bool(wanted))]
        self._responses.send(
            h11.Request(method=request.method, target=request.target, headers=headers)
        )
        self._responses.send(h11.EndOfMessage())

    @classmethod
    def of(cls, frame: Frame, client: str, limit: int) -> _Following | None:
        """The exchange that a head begins; None if it can't be parsed (the relay could)."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        try:
            parser.receive_data(frame.payload)
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return None
        if not isinstance(event, h11.Request):
            return None
        raw = RawExchange(
            client=client,
            started=frame.at,
            method=event.method.decode("latin-1"),
            target=event.target.decode("latin-1"),
            request_headers=_texts(event.headers),
            request=RawBody(limit),
            response=RawBody(limit),
        )
        return cls(raw, parser, event)

    def request(self, data: bytes) -> None:
        """More of the request's body."""
        if self._requests is None:
            return
        try:
            self._requests.receive_data(data)
            event = self._requests.next_event()
            while isinstance(event, h11.Data):
                self.raw.request.add(event.data)
                event = self._requests.next_event()
        except h11.RemoteProtocolError:
            self._requests = None

    def response(self, data: bytes, at: float) -> bytes:
        """More of the response (b"": its end); returns what belongs to the next one."""
        if self.over:
            return data
        raw = self.raw
        if data and raw.first_byte is None:
            raw.first_byte = at
        try:
            self._responses.receive_data(data)
            event = self._responses.next_event()
            while isinstance(event, h11.InformationalResponse | h11.Response | h11.Data):
                self._take(event, at)
                event = self._responses.next_event()
        except h11.RemoteProtocolError as error:
            if data:
                self.stop(f"the response is not HTTP/1.1: {error}", at)
            return b""
        if not isinstance(event, h11.EndOfMessage):
            return b""
        raw.complete, raw.ended, self.over = True, at, True
        return self._responses.trailing_data[0]

    def _take(self, event: h11.InformationalResponse | h11.Response | h11.Data, at: float) -> None:
        raw = self.raw
        if isinstance(event, h11.Data):
            raw.response.add(event.data)
            raw.piece(at)
        elif isinstance(event, h11.Response) or event.status_code == 101:
            raw.status = event.status_code
            raw.response_headers = _texts(event.headers)

    def stop(self, problem: str, at: float) -> None:
        """No more of it can be known."""
        if not self.over:
            self.raw.problem, self.raw.ended, self.over = problem, at, True

    def close(self, at: float) -> None:
        """The connection is closed."""
        if not self.over:
            self.raw.ended, self.over = at, True
            # After an upgrade another protocol was spoken until the end.
            self.raw.complete = self.raw.status == 101


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
