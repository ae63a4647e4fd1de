"""What a trace holds: one exchange, one run, and the plain-JSON form of both.

What lives here: the data that the proxy writes and that viewers, `phloem trace` and exports
read. What does not: finding traces (`reader.py`), steps worked out of events (`steps.py`),
recording (`recorder/`) and keeping (`sinks/`).

All times are seconds since the epoch (`started`, `at`) or milliseconds (`..._ms`). Secrets are
gone before one of these objects is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

__all__ = [
    "Body",
    "Exchange",
    "GroupKind",
    "RunTrace",
    "Status",
    "Timing",
    "TraceError",
    "exchange_from_json",
    "run_from_json",
    "to_json",
]

Status: TypeAlias = Literal[
    "queued", "running", "succeeded", "failed", "cancelled", "interrupted", "stale"
]
"""The words of phloem's runs. An exchange or a group of exchanges is succeeded, failed (an
error status, or an error told inside of a 200), or cancelled (the client went away)."""

GroupKind: TypeAlias = Literal["run", "trace", "conversation"]
"""What holds a group together: a run of phloem, a W3C trace id, or messages that a foreign
server was sent again with more behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request's or a response's body, decoded (gzip and deflate) and redacted.

    `text` is None if bodies are not recorded, if this one was not sampled, if it is no text, or in
    a coding that is not decoded (which `Exchange.incomplete` then says).
    `size` counts the bytes on the wire; `cut` says that `text` is only the beginning.
    """

    text: str | None = None
    size: int = 0
    cut: bool = False
    content_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Milliseconds, from the request's first byte at the proxy. None: it never happened.

    `connect_ms` is how long the connection to the upstream took, None where one was reused.
    `gaps_ms` are the pauses between pieces of the response's body as they came.
    """

    connect_ms: float | None = None
    first_byte_ms: float | None = None
    total_ms: float = 0.0
    gaps_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceError:
    """What went wrong, and where as far as it is known.

    `type` is an exception's class or an API error's code. `excerpt` are the program's source
    lines around `line`, each with its number. `variables` are the program's values when it
    failed. `cause` is the type and message of the error behind this one.
    """

    type: str
    message: str
    hint: str | None = None
    program: str | None = None
    node: str | None = None
    file: str | None = None
    line: int | None = None
    excerpt: tuple[tuple[int, str], ...] = ()
    variables: dict[str, Any] | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP request and what came of it.

    `group` is the id of the group it belongs to (see `GroupKind`), which for a run of phloem is
    the run's id. `status` is 0 if no response came. Header names are in lower case. `usage` is
    the upstream's own report. `output` is the generated text, put together from all events of a
    stream (of several choices the first). `constraint` is what the request asked to be enforced:
    kind and definition. `incomplete` names what the record lacks, and why.
    """

    id: str
    group: str
    group_kind: GroupKind
    started: float
    method: str
    path: str
    status: int
    outcome: Status = "succeeded"
    client: str | None = None
    upstream: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    run: str | None = None
    program: str | None = None
    model: str | None = None
    stream: bool = False
    timing: Timing = Timing()
    request_headers: tuple[tuple[str, str], ...] = ()
    response_headers: tuple[tuple[str, str], ...] = ()
    request: Body = Body()
    response: Body = Body()
    output: str | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    constraint: dict[str, Any] | None = None
    errors: tuple[TraceError, ...] = ()
    incomplete: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """One run of a program, or one group of exchanges: all that is known of it.

    `events` are the transitions in order, as `phloem.programs.events` writes them to JSON (empty
    for groups of a foreign server); `steps.steps_of` makes steps of them, with prompts and with
    variables before and after. `effects` are the record of the run as `GET /v1/runs/{id}` gives
    it (`path`, `seq`, `kind`, `name`, `node`, `line`, `outcome`): a rewind is addressed by it,
    and outcomes hold log-probabilities where the program asked for them. `graph` is
    `StateGraph.describe()`. `source` is where the run can be asked for again: the address of its
    server, None for a record that is all there is.
    """

    id: str
    kind: GroupKind
    started: float
    status: Status
    program: str | None = None
    program_hash: str | None = None
    finished: float | None = None
    trace_id: str | None = None
    parent: str | None = None
    attempt: int = 1
    seed: int | None = None
    args: dict[str, Any] | None = None
    value: Any = None
    variables: dict[str, Any] | None = None
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    usage: dict[str, Any] | None = None
    error: TraceError | None = None
    events: tuple[dict[str, Any], ...] = ()
    effects: tuple[dict[str, Any], ...] = ()
    graph: dict[str, Any] | None = None
    mermaid: str | None = None
    exchanges: tuple[Exchange, ...] = ()
    source: str | None = None

    @property
    def duration_ms(self) -> float | None:
        """From start to end; None while it runs."""
        return None if self.finished is None else 1000 * (self.finished - self.started)


_EXCHANGE = TypeAdapter(Exchange)
_RUN = TypeAdapter(RunTrace)


def to_json(item: Exchange | RunTrace) -> dict[str, Any]:
    """Plain JSON; `exchange_from_json` and `run_from_json` are the inverse."""
    adapter = _EXCHANGE if isinstance(item, Exchange) else _RUN
    found: dict[str, Any] = adapter.dump_python(item, mode="json")  # type: ignore[arg-type]
    return found


def exchange_from_json(data: Any) -> Exchange:
    """The exchange of its JSON form. Raises `ValueError` for anything else."""
    return _EXCHANGE.validate_python(data)


def run_from_json(data: Any) -> RunTrace:
    """The run of its JSON form. Raises `ValueError` for anything else."""
    return _RUN.validate_python(data)
