"""A run's steps, worked out of its events: what each saw, did and left behind.

What lives here: `Step` and `steps_of`. What does not: how a step is shown (`viewer/`, `show.py`)
and the events themselves (`phloem/programs/events.py`).

A branch begins with its parent's text and variables. The variables before a step are the
program's arguments and what steps and Python nodes on its branch have set so far; those of
Python nodes are known in runs with `trace_values` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phloem.server.trace.record import RunTrace

__all__ = ["Piece", "Step", "steps_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text of a step as it came. `at_ms` counts from the run's start; `forced_spans` are the
    characters that the constraint dictated, [begin, end) within `text`."""

    text: str
    at_ms: float
    tokens: int = 0
    forced: int = 0
    forced_spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `path` and `seq` are its address in the record, for a rewind (`seq` None: the
    record is not known, or holds no such entry: a failure that ended the run).

    `prompt` is the branch's text when the step began, of which the first `reused_chars` came
    from the cache (None: not known); `added` are the program's own texts in it that came since the
    gen or select before on this branch. `text` is what it generated or chose. `replayed`: it is
    from the record of an earlier run. `error` is the type and message of its failure. Times are
    milliseconds since the run began; `ended_ms` None: it never ended.
    """

    path: str
    seq: int | None
    kind: str
    name: str | None
    node: str | None
    file: str | None
    line: int | None
    started_ms: float
    ended_ms: float | None = None
    asked: Mapping[str, Any] | None = None
    prompt: str = ""
    added: tuple[str, ...] = ()
    reused_chars: int | None = None
    text: str = ""
    pieces: tuple[Piece, ...] = ()
    value: Any = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    timing: Mapping[str, Any] | None = None
    miss: Mapping[str, Any] | None = None
    scores: Mapping[str, float] | None = None
    constraint: Mapping[str, Any] | None = None
    logprobs: tuple[Mapping[str, Any], ...] = ()
    query: str | None = None
    index: str | None = None
    hits: tuple[Mapping[str, Any], ...] = ()
    partial: bool = False
    replayed: bool = False
    error: tuple[str, str] | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float | None:
        """How long it took; None if it never ended."""
        return None if self.ended_ms is None else self.ended_ms - self.started_ms


@dataclass(slots=True)
class _Branch:
    text: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Texts that no step has been asked with yet."""
    done: int = 0
    """Entries of the record that belong to steps so far."""

    def child(self) -> _Branch:
        return _Branch(self.text, dict(self.variables))

    def take_added(self, kind: str) -> tuple[str, ...]:
        if kind not in {"gen", "select"}:
            return ()
        found = tuple(self.added)
        self.added.clear()
        return found


def steps_of(run: RunTrace) -> tuple[Step, ...]:
    """The steps of a run in the order they began; empty where no events are known."""
    reading = _Reading(run.effects)
    for event in run.events:
        reading.take(event)
    return tuple(reading.steps)


_Key = tuple[str, str | None, str | None]


class _Reading:
    """Events read so far. `effects` are the record's."""

    def __init__(self, effects: Sequence[Mapping[str, Any]]) -> None:
        self._effects: dict[str, list[Mapping[str, Any]]] = {}
        for effect in effects:
            self._effects.setdefault(effect["path"], []).append(effect)
        self.steps: list[Step] = []
        self._branches: dict[str, _Branch] = {"": _Branch()}
        self._open: dict[_Key, int] = {}
        """Where in `steps` a step is that has not ended."""
        self._pieces: dict[int, list[Piece]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        branch = self._branch(event["path"])
        match event["type"]:
            case "run_started":
                branch.variables.update(event["args"])
            case "appended":
                branch.text += event["text"]
                if event.get("number") is not None:
                    branch.added.append(event["text"])
            case "step_started":
                self._start(event, branch)
            case "token":
                self._piece(event)
            case "step_finished" | "step_failed" | "retrieved":
                self._end(event, branch)
            case "ran":
                branch.variables.update(event.get("values") or {})
            case "forked":
                for child in event["children"]:
                    self._branches[child] = branch.child()
            case "joined":
                self._join(branch, event["children"])

    def _branch(self, path: str) -> _Branch:
        if path not in self._branches:
            # A child whose fork was not seen.
            parent = path.rpartition(".")[0]
            self._branches[path] = self._branch(parent).child()
        return self._branches[path]

    def _start(self, event: Mapping[str, Any], branch: _Branch) -> None:
        self._open[_key(event)] = len(self.steps)
        self.steps.append(
            Step(
                path=event["path"],
                seq=None,
                kind=event["kind"],
                name=event["name"],
                node=event["node"],
                file=event["file"],
                line=event["line"],
                started_ms=1000 * event["at"],
                asked=event.get("asked"),
                prompt=branch.text,
                added=branch.take_added(event["kind"]),
                before=dict(branch.variables),
                after=dict(branch.variables),
            )
        )

    def _piece(self, event: Mapping[str, Any]) -> None:
        at = self._open.get(_key(event))
        if at is not None:
            piece = Piece(
                text=event["text"],
                at_ms=1000 * event["at"],
                tokens=len(event["tokens"]),
                forced=event["forced"],
                forced_spans=tuple((a, b) for a, b in event.get("forced_spans") or ()),
            )
            self._pieces.setdefault(at, []).append(piece)

    def _end(self, event: Mapping[str, Any], branch: _Branch) -> None:
        if _key(event) not in self._open:
            self._start({"kind": "retrieve", **event}, branch)
        at = self._open.pop(_key(event))
        step = replace(
            self.steps[at],
            ended_ms=1000 * event["at"],
            pieces=tuple(self._pieces.pop(at, ())),
        )
        if event["type"] == "step_failed":
            came = "".join(piece.text for piece in step.pieces)
            branch.text += came
            found: dict[str, Any] = {"error": (event["error"], event["message"]), "text": came}
        else:
            found = _hits(event) if event["type"] == "retrieved" else _result(event, step)
            branch.text += event.get("text", "")
            if step.name is not None:
                branch.variables[step.name] = found["value"]
        found["seq"] = self._address(step, branch)
        found["replayed"] = bool(event.get("replayed"))
        self.steps[at] = replace(step, **found, after=dict(branch.variables))

    def _address(self, step: Step, branch: _Branch) -> int | None:
        """The number of the step's entry in the record; a failure that ended the run has none."""
        known = self._effects.get(step.path, ())
        if branch.done >= len(known):
            return None
        entry = known[branch.done]
        if (entry["kind"], entry["name"]) != (step.kind, step.name):
            return None
        branch.done += 1
        return int(entry["seq"])

    def _join(self, branch: _Branch, children: Sequence[str]) -> None:
        """What branches set is gathered into lists, in their order."""
        gathered: dict[str, list[Any]] = {}
        for child in children:
            for name, value in self._branch(child).variables.items():
                if name not in branch.variables:
                    gathered.setdefault(name, []).append(value)
        branch.variables.update(gathered)


def _key(event: Mapping[str, Any]) -> _Key:
    return (event["path"], event["node"], event.get("name"))


def _hits(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "query": event["query"],
        "index": event["index"],
        "hits": tuple(event["hits"]),
        "partial": event["partial"],
        "value": [hit["id"] for hit in event["hits"]],
    }


_SAME = ("text", "value", "finish_reason", "usage", "timing", "miss", "scores", "constraint")


def _result(event: Mapping[str, Any], step: Step) -> dict[str, Any]:
    found = {name: event.get(name) for name in _SAME}
    found["logprobs"] = tuple(event.get("logprobs") or ())
    computed = event.get("computed_chars")
    if computed is not None:
        found["reused_chars"] = max(0, len(step.prompt) - computed)
    return found
