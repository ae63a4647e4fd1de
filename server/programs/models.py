"""Bodies and replies of the program endpoints.

What lives here: the pydantic models. What does not: the endpoints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from phloem.server.http.replies import ErrorDetail
from phloem.server.openai.fields import Count, Flag, Number

__all__ = [
    "Address",
    "GraphReply",
    "ProgramList",
    "ProgramReply",
    "RewindRequest",
    "RunList",
    "RunOptions",
    "RunReply",
    "RunRequest",
    "RunStatus",
    "StepReply",
]

RunStatus = Literal["queued", "running", "succeeded", "failed", "cancelled", "interrupted", "stale"]
"""interrupted: the server stopped while it ran and it was not asked to go on by itself.
stale: it can't go on, because its program or the model changed."""

Seed = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)]


class ProgramReply(BaseModel):
    """A program: its documentation, the JSON Schema of its arguments, its hash."""

    name: str
    doc: str | None
    style: str
    arguments: dict[str, Any]
    hash: str


class ProgramList(BaseModel):
    """All programs."""

    object: Literal["list"] = "list"
    data: list[ProgramReply]


class GraphReply(BaseModel):
    """A program's state graph."""

    program: str
    graph: dict[str, Any]
    mermaid: str


class RunOptions(BaseModel):
    """How a run is done."""

    model_config = ConfigDict(extra="forbid")

    deadline_s: Annotated[Number, Field(ge=0.001, le=86400)] | None = None
    seed: Seed | None = None
    token_budget: Count | None = None


class RunRequest(RunOptions):
    """The body that starts a run.

    `stream` sends its events; `background` answers at once and lets the run survive its
    client and the server. Both together: events of a run that survives.
    """

    args: dict[str, Any] = Field(default_factory=dict)
    stream: Flag = False
    background: Flag = False


class RunUsage(BaseModel):
    """Tokens by kind: prompt = reused + prefilled; see `Usage`."""

    prompt: int = 0
    reused: int = 0
    prefilled: int = 0
    generated: int = 0
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    scored: int = 0


class RunReply(BaseModel):
    """A run. `value` is what the program returned, `variables` what its steps set."""

    id: str
    object: Literal["run"] = "run"
    program: str
    status: RunStatus
    args: dict[str, Any]
    background: bool
    parent: str | None = None
    """The run that this one was rewound from."""
    attempt: int = 1
    """How many times it was started: more than 1 after a restart of the server."""
    seed: int
    trace_id: str
    created_at: float
    finished_at: float | None = None
    value: Any = None
    variables: dict[str, Any] | None = None
    text: str | None = None
    messages: list[dict[str, str]] | None = None
    usage: RunUsage | None = None
    error: ErrorDetail | None = None
    changed: list[str] | None = None
    """Of a stale run: what is different from the program it was started with."""


class StepReply(BaseModel):
    """One effect of a run's record; `path` and `seq` are its address. One of kind "text" is text
    that a rewind put in: its path is the branch, a "+" and the number of the text it replaces."""

    path: str
    seq: int
    kind: str | None
    name: str | None
    node: str | None
    line: int | None
    outcome: Any


class RunDetail(RunReply):
    """A run with its record."""

    steps: list[StepReply]


class RunList(BaseModel):
    """A page of runs, newest first; `next` is the cursor of the following page."""

    object: Literal["list"] = "list"
    data: list[RunReply]
    next: str | None = None


class Address(BaseModel):
    """Where in a run: a node's id, if it was passed once, or a branch and a number."""

    model_config = ConfigDict(extra="forbid")

    node: str | None = None
    path: str = ""
    seq: Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)] | None = None


class RewindRequest(Address):
    """Run again from a step. With `set` the step is not asked again but has this value. With
    `prompt` it is asked with other text: for the one text that the program put in since the gen or
    select before it, or an item for each (null: as it was)."""

    set: Any = None
    prompt: Annotated[str, Strict()] | list[Annotated[str, Strict()] | None] | None = None
    stream: Flag = False


class ResumeRequest(BaseModel):
    """Go on with a run that was interrupted. `repeat_unfinished`: call the tool again of
    which nobody knows whether it happened."""

    model_config = ConfigDict(extra="forbid")

    repeat_unfinished: Flag = False
