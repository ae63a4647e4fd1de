"""Sending a recorded request again, to another server, and what came of it then.

What lives here: `replay`. What does not: comparing (`server/viewer/compare.py`, the command line).

A request is sent as it was recorded, but for what belongs to its connection and for its secrets:
those were never recorded, so a key is given anew. A run of phloem of which no request is known is
started by its program, its arguments and its seed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from phloem.errors import ConfigError
from phloem.server.trace.record import Exchange, RunTrace, exchange_from_json
from phloem.server.trace.recorder.exchange import Reading
from phloem.server.trace.recorder.raw import RawBody, RawExchange
from phloem.server.trace.recorder.redact import MASK, Redactor

__all__ = ["Replayed", "replay"]

LIMIT = 16 * 2**20
_OWN = frozenset({
    "host", "connection", "content-length", "transfer-encoding", "accept-encoding", "keep-alive",
    "expect", "upgrade", "te", "trailer", "traceparent", "idempotency-key",
})  # fmt: skip
"""Headers of one connection or of one call."""
_SENT_ANEW = re.compile(r"/v1/runs/")


@dataclass(frozen=True, slots=True)
class Replayed:
    """A request, what came of it, and what comes of it now; or why it could not be sent."""

    old: Exchange | None
    new: Exchange | None
    problem: str | None = None


def replay(run: RunTrace, upstream: str, key: str | None = None) -> Iterator[Replayed]:
    """Send the requests of a trace to `upstream`, in order, with `key` as their bearer.

    Raises `ConfigError` if the trace holds nothing that can be sent.
    """
    reading = Reading(Redactor([key] if key else []), upstream, bodies=1.0)
    asked = [one for one in run.exchanges if one.method == "POST" and not _is_about_a_run(one)]
    with httpx.Client(base_url=upstream, timeout=600) as client:
        for old in asked:
            problem = _unsendable(old)
            if problem is not None:
                yield Replayed(old, None, problem)
                continue
            headers = dict(_headers(old))
            yield Replayed(
                old, _send(client, reading, old.path, headers, old.request.text or "", key)
            )
        if asked:
            return
        if run.program is None or run.args is None:
            raise ConfigError(
                f"the trace {run.id} holds no request that could be sent again",
                hint="record bodies (`--bodies on`), or replay a run of phloem",
            )
        body = json.dumps({"args": run.args, "seed": run.seed})
        path = f"/v1/programs/{run.program}/runs"
        json_type = {"content-type": "application/json"}
        yield Replayed(None, _send(client, reading, path, json_type, body, key))


def _is_about_a_run(one: Exchange) -> bool:
    """Runs have other ids elsewhere."""
    return _SENT_ANEW.search(one.path) is not None


def _unsendable(one: Exchange) -> str | None:
    if one.request.text is None:
        return "its body was not recorded" if one.request.size else None
    if one.request.cut:
        return "only the beginning of its body was recorded"
    if MASK in one.request.text or MASK in one.path:
        return "a secret was taken out of it"
    return None


def _headers(one: Exchange) -> Iterator[tuple[str, str]]:
    for name, value in one.request_headers:
        if name not in _OWN and MASK not in value:
            yield name, value


def _send(
    client: httpx.Client,
    reading: Reading,
    path: str,
    headers: dict[str, str],
    body: str,
    key: str | None,
) -> Exchange:
    if key is not None:
        headers = {**headers, "authorization": f"Bearer {key}"}
    headers["accept-encoding"] = "identity"
    raw = RawExchange(
        client="",
        started=time.time(),
        method="POST",
        target=path,
        request_headers=list(headers.items()),
        request=RawBody(LIMIT),
        response=RawBody(LIMIT),
    )
    raw.request.add(body.encode())
    try:
        with client.stream("POST", path, content=body, headers=headers) as reply:
            raw.first_byte = time.time()
            raw.status = reply.status_code
            raw.response_headers = [(k.lower(), v) for k, v in reply.headers.items()]
            for piece in reply.iter_raw():
                raw.response.add(piece)
                raw.piece(time.time())
            raw.complete = True
    except httpx.ConnectError as error:
        raw.unreachable = str(error)
    except httpx.HTTPError:
        raw.gone = "upstream"
    raw.ended = time.time()
    found = reading.read(raw)
    return exchange_from_json(found)
