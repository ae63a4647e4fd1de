"""Traces that the viewer's tests show: made from events, without running anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phloem.server.trace.record import Body, Exchange, RunTrace, Timing, TraceError, to_json
from phloem.server.trace.sinks.jsonl import JsonlSink

HOSTILE = "</pre></script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"


class Events:
    """Writes the events of a run down, a tenth of a second apart."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, /, path: str = "", node: str | None = None, **fields: Any) -> None:
        """One event."""
        shared = {"type": kind, "run": "r", "seq": len(self.events), "path": path, "node": node}
        at = len(self.events) / 10
        self.events.append({**shared, "at": at, "file": "/app/prog.py", "line": 3, **fields})

    def begin(self, **args: Any) -> None:
        """The run's first event."""
        self.add("run_started", program="p", args=args, trace_id="t" * 32)

    def gen(self, name: str, text: str, path: str = "", **fields: Any) -> None:
        """A whole gen step, in one piece."""
        node = f"gen:{name}"
        self.add("step_started", path, node, kind="gen", name=name, asked=None)
        self.add("token", path, node, name=name, text=text, tokens=[1, 2], forced=0,
                 forced_spans=fields.pop("forced_spans", []))  # fmt: skip
        usage = {"prompt": 10, "reused": 8, "prefilled": 2, "generated": 2, "forced": 0,
                 "drafted": 0, "accepted": 0, "scored": 0}  # fmt: skip
        timing = {"queue_ms": 10.0, "prefill_ms": 40.0, "decode_ms": 100.0, "mask_ms": 1.0,
                  "total_ms": 150.0}  # fmt: skip
        self.add("step_finished", path, node, kind="gen", name=name, text=text, value=text,
                 **{"usage": usage, "timing": timing, **fields})  # fmt: skip

    def text(self, text: str, path: str = "", node: str | None = None) -> None:
        """Text that is put into the session."""
        self.add("appended", path, node, text=text)


def run_of_events(events: Sequence[Mapping[str, Any]], **fields: Any) -> RunTrace:
    """A finished run with these events."""
    known: dict[str, Any] = {
        "id": "run_1", "kind": "run", "started": 1000.0, "finished": 1000.0 + len(events) / 10,
        "status": "succeeded", "program": "p", "args": {"topic": "x"},
    }  # fmt: skip
    return RunTrace(**{**known, **fields}, events=tuple(dict(event) for event in events))


def long_run(steps: int) -> RunTrace:
    """A run of many steps: four events each, text, start, token, end."""
    events = Events()
    events.begin(topic="x")
    for number in range(steps):
        events.text(f"{number}: ")
        events.gen(f"step{number}", f"text {number}")
    return run_of_events(events.events, id="run_long")


def hostile_run() -> RunTrace:
    """A run whose every text would be markup, if it were not escaped."""
    events = Events()
    events.begin(**{HOSTILE: HOSTILE})
    events.text(HOSTILE)
    events.gen(
        HOSTILE, HOSTILE, logprobs=[{"token": 1, "text": HOSTILE, "logprob": -2.0, "top": []}]
    )
    events.add("step_started", kind="retrieve", name="docs")
    events.add("retrieved", name="docs", query=HOSTILE, index=HOSTILE, took_ms=1.0, partial=False,
               hits=[{"id": HOSTILE, "text": HOSTILE, "title": HOSTILE, "score": 1.0}])  # fmt: skip
    events.add("ran", wrote=[HOSTILE], values={HOSTILE: HOSTILE})
    graph = {
        "entry": "gen:a",
        "nodes": [{"id": "gen:a", "kind": "gen", "name": HOSTILE, "line": 3, "source": HOSTILE}],
        "edges": [["gen:a", "gen:a", HOSTILE]],
    }
    error = TraceError(
        type=HOSTILE, message=HOSTILE, hint=HOSTILE, file=HOSTILE, line=3, node=HOSTILE,
        excerpt=((3, HOSTILE),), variables={HOSTILE: HOSTILE}, cause=HOSTILE,
    )  # fmt: skip
    return run_of_events(
        events.events, id="run_hostile", graph=graph, status="failed", program=HOSTILE,
        value=HOSTILE, args={HOSTILE: HOSTILE}, error=error,
    )  # fmt: skip


def exchange(number: int, messages: Sequence[Mapping[str, Any]], output: str) -> Exchange:
    """A chat request with any server, and its answer."""
    return Exchange(
        id=f"x{number}",
        group="conv_1",
        group_kind="conversation",
        started=1000.0 + number,
        method="POST",
        path="/v1/chat/completions",
        status=200,
        model="other-model",
        timing=Timing(first_byte_ms=20.0, total_ms=100.0, gaps_ms=(1.0, 2.0)),
        request=Body(text=json.dumps({"messages": list(messages)}), size=100),
        response=Body(text="data: {}", size=50),
        output=output,
        finish_reason="stop",
    )


def folder_of(path: Path, items: Iterable[RunTrace | Exchange]) -> Path:
    """A folder of traces as the proxy's sink writes it."""
    sink = JsonlSink(path)
    kinds = {RunTrace: "run", Exchange: "exchange"}
    sink.keep([{"document": kinds[type(item)], **to_json(item)} for item in items])
    sink.finish()
    return path
