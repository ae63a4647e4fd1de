"""From what passed to an `Exchange`: the meaning of heads and bodies.

What lives here: `Reading`, which does that with one redactor and one memory of groups. What
does not: parsing HTTP (`links.py`) and where exchanges go (`process.py`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from phloem.server.http.trace_context import TraceContext
from phloem.server.trace.record import Body, Exchange, Status, Timing, TraceError, to_json
from phloem.server.trace.recorder.asked import constraint_of, given_by
from phloem.server.trace.recorder.groups import Groups, run_of_exchange, trace_of
from phloem.server.trace.recorder.raw import RawBody, RawExchange
from phloem.server.trace.recorder.redact import Redactor
from phloem.server.trace.recorder.replies import Reply, error_of, read_reply

__all__ = ["Reading"]

WITHHELD = "*** (left out: a secret was sent in pieces)"


class Reading:
    """Reads exchanges with one server. `bodies` is the share of bodies that is recorded; those
    of failed exchanges always are, unless it is 0."""

    def __init__(self, redactor: Redactor, upstream: str, bodies: float) -> None:
        self._redactor = redactor
        self._upstream = upstream
        self._bodies = bodies
        self._groups = Groups()

    def read(self, raw: RawExchange) -> dict[str, Any]:
        """The exchange as JSON, without secrets."""
        redactor = self._redactor
        redactor.learn(raw.request_headers)
        sent, came = _text(raw.request, raw, of_response=False), _text(raw.response, raw)
        asked = _object(sent)
        reply = read_reply(came or "", raw.header("content-type", response=True))
        errors = _errors(raw, reply, came)
        outcome = _outcome(raw, errors)
        group, kind = self._groups.of(raw, given_by(asked))
        keep = self._keeps(group, outcome)
        found = Exchange(
            id=raw.id,
            group=group,
            group_kind=kind,
            started=raw.started,
            method=raw.method,
            path=redactor.target(raw.target),
            status=502 if raw.unreachable is not None else raw.status,
            outcome=outcome,
            client=raw.client or None,
            upstream=self._upstream,
            request_id=raw.header("x-request-id", response=True) or None,
            trace_id=trace_of(raw) or _answered_trace(raw),
            run=run_of_exchange(raw),
            program=_program(raw, asked),
            model=reply.model or _string(asked.get("model")),
            stream="text/event-stream" in raw.header("content-type", response=True),
            timing=_timing(raw),
            request_headers=redactor.headers(raw.request_headers),
            response_headers=redactor.headers(raw.response_headers),
            request=self._body(raw.request, sent if keep else None, raw.header("content-type")),
            response=self._body(
                raw.response,
                came if keep else None,
                raw.header("content-type", response=True),
                reply,
            ),
            output=reply.output or None if keep else None,
            usage=reply.usage,
            finish_reason=reply.finish_reason,
            constraint=constraint_of(asked) if keep else None,
            errors=tuple(errors),
            incomplete=raw.problem or _undecoded(raw),
        )
        clean: dict[str, Any] = redactor.value(to_json(found))
        return clean

    def _keeps(self, group: str, outcome: Status) -> bool:
        if self._bodies <= 0:
            return False
        # By the group, so that all of a conversation is there or none of it.
        sampled = zlib.crc32(group.encode()) / 2**32 < self._bodies
        return sampled or outcome == "failed"

    def _body(
        self, body: RawBody, text: str | None, content_type: str, reply: Reply | None = None
    ) -> Body:
        if text is not None:
            in_pieces = reply is not None and self._redactor.pieces(reply.pieces)
            text = WITHHELD if in_pieces else self._redactor.body(text)
        return Body(text=text, size=body.size, cut=body.cut, content_type=content_type or None)


def _answered_trace(raw: RawExchange) -> str | None:
    """The trace that the upstream says it worked in."""
    header = raw.header("traceparent", response=True)
    found = TraceContext.receive(header)
    return found.trace_id if found.parent_id is not None else None


def _text(body: RawBody, raw: RawExchange, *, of_response: bool = True) -> str | None:
    """A body as text, or None if it is none."""
    if not body.size:
        return None
    data = body.decoded(raw.header("content-encoding", response=of_response).lower())
    if data is None or b"\0" in data[:1024]:
        return None
    return data.decode("utf-8", errors="replace")


def _undecoded(raw: RawExchange) -> str | None:
    """Why a body that passed whole has no text: nobody here knows its coding."""
    for name, body, of_response in (
        ("request", raw.request, False),
        ("response", raw.response, True),
    ):
        coding = raw.header("content-encoding", response=of_response).lower()
        if body.size and body.decoded(coding) is None:
            return f"the {name} has the content coding {coding!r}, which is not decoded"
    return None


def _object(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _errors(raw: RawExchange, reply: Reply, came: str | None) -> list[TraceError]:
    """What went wrong, by any of the ways in which servers and connections say it."""
    if raw.unreachable is not None:
        return [TraceError(type="unreachable", message=raw.unreachable)]
    asked_of_run = raw.method == "GET" and run_of_exchange(raw) is not None
    if reply.errors and not (asked_of_run and raw.status < 400):
        return reply.errors
    if raw.status >= 400:
        told = error_of(_object(came))
        return [told or TraceError(type=_phrase(raw.status), message=(came or "")[:500])]
    if not raw.complete and raw.gone != "client" and raw.problem is None:
        after = f"after {raw.response.size} bytes of a body" if raw.status else "without an answer"
        return [TraceError(type="broken_off", message=f"the upstream closed {after}")]
    return []


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.lower().replace(" ", "_")
    except ValueError:
        return f"status_{status}"


def _outcome(raw: RawExchange, errors: list[TraceError]) -> Status:
    if not raw.complete and raw.gone == "client" and raw.unreachable is None:
        return "cancelled"
    return "failed" if errors else "succeeded"


def _program(raw: RawExchange, asked: Mapping[str, Any]) -> str | None:
    _, found, rest = raw.target.partition("/v1/programs/")
    if found:
        return rest.partition("?")[0].split("/")[0] or None
    model = asked.get("model")
    if isinstance(model, str) and model.startswith("program:"):
        return model.removeprefix("program:")
    return None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _timing(raw: RawExchange) -> Timing:
    def since(at: float | None) -> float | None:
        return None if at is None else round(1000 * (at - raw.started), 3)

    gaps = zip(raw.pieces, raw.pieces[1:], strict=False)
    return Timing(
        connect_ms=raw.connect_ms,
        first_byte_ms=since(raw.first_byte),
        total_ms=since(raw.ended) or 0.0,
        gaps_ms=tuple(round(1000 * (later - earlier), 3) for earlier, later in gaps),
    )
