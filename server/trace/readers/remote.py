"""The runs of a running phloem as traces, over its own API.

What lives here: `RemoteReader`. What does not: exchanges; a server records none of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from phloem.errors import JournalError
from phloem.server.trace.assemble import haystack
from phloem.server.trace.paging import cursor_of, facets_of, parse_cursor
from phloem.server.trace.reader import (
    Facets,
    TraceFilter,
    TraceNotFound,
    TracePage,
    TraceSummary,
    matches,
    summary_of,
)
from phloem.server.trace.record import RunTrace
from phloem.server.trace.runs import run_of

__all__ = ["RemoteReader"]

PAGE = 200
LOOKED_AT = 2000
"""How many of the newest runs facets are made of."""


class RemoteReader:
    """The runs that `key` may see on the server at `url`."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._url = url.rstrip("/")

    def list(self, wanted: TraceFilter, *, limit: int = 50, cursor: str | None = None) -> TracePage:
        """See `TraceReader.list`. What the server can't filter by is filtered here."""
        if wanted.kind not in {None, "run"}:
            return TracePage(())
        if cursor is not None:
            parse_cursor(cursor)
        asked = {"program": wanted.program, "status": wanted.status}
        items: list[TraceSummary] = []
        for reply in self._runs(asked, cursor):
            run = run_of(reply, ())
            line = summary_of(run)
            if matches(wanted, line, haystack(run)):
                if len(items) == limit:
                    return TracePage(tuple(items), cursor_of(items[-1].started, items[-1].id))
                items.append(line)
        return TracePage(tuple(items))

    def get(self, trace: str) -> RunTrace:
        """See `TraceReader.get`. Of a run that is not over, what has happened so far."""
        reply = self._get(f"/v1/runs/{trace}")
        over = reply["status"] not in {"queued", "running"}
        events = list(self._events(trace)) if over else []
        # A program that is not registered (any more) has none.
        drawn = self._call(f"/v1/programs/{reply['program']}/graph")
        graph = drawn.json() if drawn.status_code == 200 else {}
        return run_of(reply, events, graph.get("graph"), graph.get("mermaid"), source=self._url)

    def facets(self) -> Facets:
        """See `TraceReader.facets`."""
        found = []
        for reply in self._runs({}, None):
            found.append(summary_of(run_of(reply, ())))
            if len(found) == LOOKED_AT:
                break
        return facets_of(found)

    def post(self, path: str, body: bytes) -> httpx.Response:
        """Send JSON to the server; its answer, whatever it is. Raises `JournalError` if there is
        none."""
        return self._sent("POST", path, content=body, headers={"content-type": "application/json"})

    def _runs(self, asked: dict[str, Any], cursor: str | None) -> Iterator[dict[str, Any]]:
        while True:
            known = {"limit": PAGE, "cursor": cursor} | asked
            page = self._get(
                "/v1/runs", {name: value for name, value in known.items() if value is not None}
            )
            yield from page["data"]
            cursor = page["next"]
            if cursor is None:
                return

    def _events(self, trace: str) -> Iterator[dict[str, Any]]:
        for line in self._text(f"/v1/runs/{trace}/events").splitlines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                if "seq" in event and "type" in event:
                    yield event

    def _get(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        return json.loads(self._text(path, asked))

    def _text(self, path: str, asked: dict[str, Any] | None = None) -> str:
        reply = self._call(path, asked)
        if reply.status_code == 404 and "/runs/" in path:
            raise TraceNotFound(f"{self._url} has no run {path.split('/')[3]!r}")
        if reply.status_code != 200:
            raise JournalError(
                f"{self._url} answered {reply.status_code} to {path}",
                hint="for a server with keys set PHLOEM_API_KEY"
                if reply.status_code == 401
                else None,
            )
        return reply.text

    def _call(self, path: str, asked: dict[str, Any] | None = None) -> httpx.Response:
        return self._sent("GET", path, params=asked, headers={})

    def _sent(
        self, method: str, path: str, *, headers: dict[str, str], **content: Any
    ) -> httpx.Response:
        headers = self._headers | headers
        try:
            return httpx.request(method, self._url + path, headers=headers, timeout=30, **content)
        except httpx.HTTPError as error:
            raise JournalError(f"{self._url} can't be reached: {error}") from error
