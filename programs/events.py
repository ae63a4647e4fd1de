"""Everything that happens in a run, as one stream of typed events.

What lives here: the event classes and their plain-JSON form. What does not: who emits them
(the executor) or who reads them (streaming, traces, the journal, the debug proxy, the demo's
table). A run emits `RunStarted` first and `RunFinished` or `RunFailed` last; events of one
branch are in order, events of parallel branches interleave.

Some fields are filled only in runs with `trace_values=True`, because they hold what a program
keeps to itself: values of its variables, arguments of its tools, its source. They are shortened
for people (`executor/glance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from phloem.programs.protocol import PrefixMiss, Timing, TokenLogprob, Usage

__all__ = [
    "AnyEvent",
    "Appended",
    "BranchTaken",
    "Event",
    "Forked",
    "Joined",
    "Ran",
    "Retrieved",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "StepFailed",
    "StepFinished",
    "StepStarted",
    "Token",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events share.

    `seq` counts the run's events from 0. `path` is the branch ("" is the trunk, "0.1" the
    second child of its first child), `node` the graph node's id, `file` and `line` the user's
    source, `at` seconds since the run started.
    """

    type: ClassVar[str] = "event"
    run: str
    seq: int
    at: float
    path: str = ""
    node: str | None = None
    file: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with the event's `type`."""
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run began. `args` are the program's arguments as JSON values."""

    type: ClassVar[Literal["run_started"]] = "run_started"
    program: str
    args: Mapping[str, Any]
    trace_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(Event):
    """Text was put at the end of a session; `text` shows special tokens by their spelling.

    `number` counts the program's own texts on this branch from 0: a rewind may change them. Chat
    markup and special tokens have none.
    """

    type: ClassVar[Literal["appended"]] = "appended"
    text: str
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Event):
    """A step of `kind` "gen", "select", "retrieve" or "tool" began; `name` is its variable.

    `asked` (with `trace_values`) is what it asks for: sampling parameters that differ from the
    defaults and the constraint; choices; query and index; or a tool's arguments.
    """

    type: ClassVar[Literal["step_started"]] = "step_started"
    kind: str
    name: str | None
    asked: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Event):
    """New text of a running gen step, always whole characters. `forced` tokens were dictated by
    the constraint; `forced_spans` are the characters that they spell, where that is known."""

    type: ClassVar[Literal["token"]] = "token"
    name: str | None
    text: str
    tokens: tuple[int, ...] = ()
    forced: int = 0
    forced_spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """A gen, select or tool step ended well.

    `text` is what was appended to the session, `value` the parsed value as JSON. `scores`
    holds the decision of a select, choice by choice. `computed_chars` counts the characters at
    the end of the prompt that had to be computed (None: not known); `logprobs` are those of the
    generated tokens, if the program asked for them. `replayed`: nothing was asked, the result is
    from the run's record.
    """

    type: ClassVar[Literal["step_finished"]] = "step_finished"
    kind: str
    name: str | None
    text: str
    value: Any
    finish_reason: str | None = None
    usage: Usage = Usage()
    timing: Timing = Timing()
    miss: PrefixMiss | None = None
    seed: int | None = None
    scores: Mapping[str, float] | None = None
    constraint: Mapping[str, Any] | None = None
    computed_chars: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(Event):
    """A step ended with an error (which the run raises, unless the program handles it)."""

    type: ClassVar[Literal["step_failed"]] = "step_failed"
    kind: str
    name: str | None
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved(Event):
    """A retrieval ended; `hits` in rank order as JSON, `took_ms` from call to answer. `causes` say
    why it is `partial`, and `fallback` why another retriever answered. `replayed` as above."""

    type: ClassVar[Literal["retrieved"]] = "retrieved"
    name: str | None
    query: str
    index: str
    hits: tuple[Mapping[str, Any], ...]
    took_ms: float
    partial: bool = False
    causes: tuple[str, ...] = ()
    fallback: str | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked(Event):
    """A session split; `children` are the branches' paths."""

    type: ClassVar[Literal["forked"]] = "forked"
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Event):
    """Branches came together; `failed` are the paths of those that had an error."""

    type: ClassVar[Literal["joined"]] = "joined"
    children: tuple[str, ...]
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTaken(Event):
    """A condition was decided; `taken` is the edge's label ("true", "false", "next", "done")."""

    type: ClassVar[Literal["branch_taken"]] = "branch_taken"
    taken: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran(Event):
    """A `Python` node ran. `wrote` names the variables it changed, `values` holds what they are
    now (with `trace_values`)."""

    type: ClassVar[Literal["ran"]] = "ran"
    wrote: tuple[str, ...] = ()
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run ended well; `value` is what the function returned, as JSON where it can be."""

    type: ClassVar[Literal["run_finished"]] = "run_finished"
    value: Any
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """The run ended with an error, which `run()` raises.

    `cause` is the error behind it. With `trace_values`, `excerpt` holds the source lines around
    `line`, each with its number, and `variables` the program's at the time.
    """

    type: ClassVar[Literal["run_failed"]] = "run_failed"
    error: str
    message: str
    usage: Usage = Usage()
    cause: str | None = None
    excerpt: tuple[tuple[int, str], ...] = ()
    variables: Mapping[str, Any] | None = None


AnyEvent: TypeAlias = (
    RunStarted
    | Appended
    | StepStarted
    | Token
    | StepFinished
    | StepFailed
    | Retrieved
    | Forked
    | Joined
    | BranchTaken
    | Ran
    | RunFinished
    | RunFailed
)
"""What a run emits; its `type` tells which, to type checkers too."""
