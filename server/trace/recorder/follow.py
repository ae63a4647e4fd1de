"""Asking phloem for a run that was seen passing: its events, its record, its graph.

What lives here: `Follower`. What does not: recognising runs (`groups.py`) and the trace that is
made of the answers (`server/trace/runs.py`).

It asks with the caller's own credentials, directly, so nothing of this passes the proxy.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import structlog

from phloem.server.trace.record import to_json
from phloem.server.trace.recorder.raw import RawExchange
from phloem.server.trace.recorder.redact import MASK, Redactor
from phloem.server.trace.runs import run_of

__all__ = ["Follower"]

log = structlog.get_logger("phloem.trace")

AT_ONCE = 32
REMEMBERED = 10_000
"""Runs that are not asked for twice."""
TIMEOUT = httpx.Timeout(10.0, read=60.0)
_BARE = (
    "type", "run", "seq", "at", "path", "node", "file", "line", "program", "trace_id", "kind",
    "name", "finish_reason", "usage", "timing", "error", "message", "index", "took_ms", "partial",
    "children", "failed", "taken", "wrote",
)  # fmt: skip
"""What is kept of an event when bodies are not recorded: names, places and numbers."""
_TEXTS = ("args", "value", "variables", "text", "messages")


class Follower:
    """Follows runs of the server at `upstream` and gives their documents to `keep`."""

    def __init__(
        self,
        upstream: str,
        redactor: Redactor,
        keep: Callable[[dict[str, Any]], None],
        *,
        bodies: bool,
    ) -> None:
        self._client = httpx.AsyncClient(base_url=upstream, timeout=TIMEOUT, trust_env=False)
        self._upstream = upstream
        self._redactor = redactor
        self._keep = keep
        self._bodies = bodies
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def saw(self, raw: RawExchange) -> None:
        """An exchange is over; if it started a run, follow it."""
        run = raw.header("x-run-id", response=True)
        if raw.method != "POST" or not run or (not raw.complete and raw.gone != "client"):
            return
        again = raw.target.partition("?")[0].endswith("/resume")
        if run in self._seen and not again:
            return
        self._seen[run] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        key = raw.header("authorization")
        task = asyncio.ensure_future(self._follow(run, {"authorization": key} if key else {}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float) -> None:
        """Wait for runs that are followed, at most that long; what is known of the rest is
        kept."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=seconds)
                cut = sum(task.cancelled() or not task.done() for task in left)
                log.warning("runs_not_over", asked_again=len(left) - cut, not_recorded=cut)
        await self._client.aclose()

    async def _follow(self, run: str, headers: dict[str, str]) -> None:
        events: list[dict[str, Any]] = []
        async with self._limit:
            try:
                await self._read_events(run, headers, events)
            except asyncio.CancelledError:
                pass  # what has happened so far is kept; `close` tells
            except (httpx.HTTPError, ValueError) as error:
                log.warning("run_not_followed", run=run, reason=_reason(error))
            try:
                reply = await self._get(f"/v1/runs/{run}", headers)
                graph = await self._graph(reply["program"], headers)
                self._keep(self._document(reply, events, graph))
            except (httpx.HTTPError, ValueError) as error:
                log.error("run_not_recorded", run=run, reason=_reason(error))

    async def _read_events(
        self, run: str, headers: dict[str, str], events: list[dict[str, Any]]
    ) -> None:
        async with self._client.stream("GET", f"/v1/runs/{run}/events", headers=headers) as stream:
            stream.raise_for_status()
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    event = json.loads(line[5:])
                    # The last events are not the run's own: its error and its reply.
                    if "seq" in event and "type" in event:
                        events.append(event)

    async def _get(self, path: str, headers: dict[str, str]) -> dict[str, Any]:
        answer = await self._client.get(path, headers=headers)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def _graph(self, program: str, headers: dict[str, str]) -> dict[str, Any]:
        """Graph and drawing; empty for a program that is not registered (a graph sent as
        JSON)."""
        try:
            return await self._get(f"/v1/programs/{program}/graph", headers)
        except httpx.HTTPStatusError:
            return {}

    def _document(
        self, reply: dict[str, Any], events: Sequence[dict[str, Any]], graph: dict[str, Any]
    ) -> dict[str, Any]:
        if not self._bodies:
            events = [{name: one[name] for name in _BARE if name in one} for one in events]
            reply = {name: value for name, value in reply.items() if name not in _TEXTS}
            reply["steps"] = []
        run = run_of(reply, events, graph.get("graph"), graph.get("mermaid"), source=self._upstream)
        document: dict[str, Any] = self._redactor.value(to_json(run))
        _close_gaps(document["events"], self._redactor)
        return {"document": "run", **document}


def _close_gaps(events: list[dict[str, Any]], redactor: Redactor) -> None:
    """Mask the tokens of a step that spell a secret together."""
    steps: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if event["type"] == "token" and "text" in event:
            steps.setdefault((event["path"], event["node"], event["name"]), []).append(event)
    for tokens in steps.values():
        if redactor.pieces([token["text"] for token in tokens]):
            for token in tokens:
                token["text"] = MASK


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the upstream answered {error.response.status_code}"
    return str(error) or type(error).__name__
