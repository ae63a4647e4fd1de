"""Every error phloem raises, in one tree, and where in a program an error happened.

What lives here: the classes below and `Where`. What does not: the mapping to HTTP
(`server/error_map.py`) and the rendering for a terminal (`server/cli`).

    PhloemError
    ├── ConfigError              a setting, an argument or a file the user gave is wrong
    ├── ProgramError
    │   ├── CompileError         the program can't run as written (position given)
    │   ├── BatchFailed          rows of a batch failed; all results are attached
    │   ├── UnknownVariable      a variable was read that no step has set (a KeyError too)
    │   ├── StepError            a step ended without the value it promised
    │   │   └── TruncatedOutput  max_tokens or a stop cut a structured output
    │   ├── ToolError            a tool's arguments or result were refused
    │   ├── BudgetExceeded       the run's token budget is spent
    │   └── NonDeterminism       a replayed run did something else than its record
    ├── ConstraintError          a constraint can't be parsed, enforced or satisfied
    ├── EngineError
    │   ├── ModelError           weights, tokenizer or architecture can't be used
    │   │   └── ModelNotFound    no such model on this machine
    │   ├── Unsupported          this engine can't do what the program asks
    │   ├── PromptTooLong        prompt + max_tokens can never fit
    │   ├── OutOfMemory          this run alone does not fit the KV pool
    │   ├── Overloaded           the queue is full; try later
    │   ├── DeadlineExceeded     the deadline passed first
    │   ├── Cancelled            somebody cancelled it
    │   ├── EngineRestarted      the engine process was replaced
    │   └── EngineUnavailable    nobody answers at the engine's address
    ├── RetrievalError
    │   ├── InvalidQuery         the search asked for makes no sense
    │   ├── IndexNotFound        no such index
    │   ├── FieldNotFound        the index has no such field
    │   ├── RetrievalTimeout     no answer in the time given
    │   ├── RetrievalUnavailable nobody answers at that address
    │   ├── RetrievalRefused     authentication or permission
    │   ├── IncompatibleServer   another product or version answered
    │   ├── PartialResults       some shards failed or timed out
    │   └── IndexLocked          another process is writing
    └── JournalError             the record of runs can't be read or written

A foreign exception that leaves a program (a `KeyError` of the user's own code) keeps its
type; `attach_where` puts the place on it, and `where_of` reads it back from any exception.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

__all__ = [
    "BatchFailed",
    "BudgetExceeded",
    "Cancelled",
    "CompileError",
    "ConfigError",
    "ConstraintError",
    "DeadlineExceeded",
    "EngineError",
    "EngineRestarted",
    "EngineUnavailable",
    "FieldNotFound",
    "IncompatibleServer",
    "IndexLocked",
    "IndexNotFound",
    "InvalidQuery",
    "JournalError",
    "ModelError",
    "ModelNotFound",
    "NonDeterminism",
    "OutOfMemory",
    "Overloaded",
    "PartialResults",
    "PhloemError",
    "ProgramError",
    "PromptTooLong",
    "RetrievalError",
    "RetrievalRefused",
    "RetrievalTimeout",
    "RetrievalUnavailable",
    "StepError",
    "ToolError",
    "TruncatedOutput",
    "UnknownVariable",
    "Unsupported",
    "Where",
    "attach_where",
    "where_of",
]


@dataclass(frozen=True, slots=True)
class Where:
    """The place in a program where something happened. Every field may be unknown (None).

    `program` is the function's name, `node` the graph node's id (with the variable it
    writes, where it has one), `file` and `line` the user's source, `trace_id` the run's.
    """

    program: str | None = None
    node: str | None = None
    file: str | None = None
    line: int | None = None
    trace_id: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        named = [
            ("program", self.program),
            ("node", self.node),
            ("at", place),
            ("trace", self.trace_id),
        ]
        return ", ".join(f"{name} {value}" for name, value in named if value)


class PhloemError(Exception):
    """Base of all errors phloem raises itself.

    `message` says what is wrong, `hint` what to do about it. `retryable` tells whether the
    same call may succeed later. `details` holds the numbers the message names, by name, so
    that a program need not parse text.
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: Where | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.details = details

    def __str__(self) -> str:
        text = self.message
        if self.hint:
            text += f"\n  hint: {self.hint}"
        if self.where:
            text += f"\n  where: {self.where}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process borders (the engine's host): keep the keyword fields.
        return (_rebuild, (type(self), self.message, self.hint, self.where, self.details))


def _rebuild(
    cls: type[PhloemError], message: str, hint: str | None, where: Where | None, details: Any
) -> PhloemError:
    return cls(message, hint=hint, where=where, **details)


def where_of(error: BaseException) -> Where | None:
    """The place attached to `error`, or None. Works for foreign exceptions too."""
    found = getattr(error, "where", None)
    return found if isinstance(found, Where) else getattr(error, "__phloem_where__", None)


def attach_where(error: BaseException, where: Where) -> None:
    """Put `where` on `error` unless a place is known already; fields it lacks are filled in."""
    known = where_of(error)
    if known is not None:
        fields = ("program", "node", "file", "line", "trace_id")
        missing = {f: getattr(where, f) for f in fields if getattr(known, f) is None}
        where = replace(known, **missing)
    if isinstance(error, PhloemError):
        error.where = where
        return
    if known is None:
        error.add_note(f"phloem: {where}")
    # Exceptions with __slots__ can't carry the attribute; the note above still names the place.
    try:
        error.__phloem_where__ = where  # type: ignore[attr-defined]
    except AttributeError:  # pragma: no cover - needs an exotic exception class
        return


class ConfigError(PhloemError):
    """A setting, a command-line argument or a file given by the user is wrong."""


class ProgramError(PhloemError):
    """Something is wrong with a program or with one of its runs."""


class CompileError(ProgramError):
    """The program can't be compiled or started as written."""


class BatchFailed(ProgramError):
    """Rows of a batch failed and the caller asked to raise; `results` holds all states."""

    @property
    def results(self) -> list[Any]:
        """The states of all rows, in order; a failed one's `error()` is its error."""
        return list(self.details["results"])


class UnknownVariable(ProgramError, KeyError):
    """A variable of the state was read that no step has set."""


class StepError(ProgramError):
    """A step ended without the value it promised."""


class TruncatedOutput(StepError):
    """A structured output was cut, by `max_tokens` or a stop text; the text so far is in
    `details`."""


class ToolError(ProgramError):
    """A tool's arguments or its result were refused."""


class BudgetExceeded(ProgramError):
    """The run has spent its token budget."""


class NonDeterminism(ProgramError):
    """A replayed run did something else than its record says."""


class ConstraintError(PhloemError):
    """A constraint can't be parsed, can't be enforced in full, or has no valid output.

    `details` may hold `path` (JSON path in a schema), `keyword`, `position` (in a regex).
    """


class EngineError(PhloemError):
    """The engine could not do a step."""


class ModelError(EngineError):
    """Weights, tokenizer or architecture of a model can't be used."""


class ModelNotFound(ModelError):
    """No such model on this machine."""


class Unsupported(EngineError):
    """This engine lacks an ability that the program needs."""


class PromptTooLong(EngineError):
    """Prompt and requested tokens exceed the context or the pool, so it can never run."""


class OutOfMemory(EngineError):
    """This run alone does not fit the KV pool."""


class Overloaded(EngineError):
    """The queue is full. `details["retry_after_s"]` estimates when to try again."""

    retryable = True


class DeadlineExceeded(EngineError):
    """The deadline, counted from arrival, passed before the work was done."""


class Cancelled(EngineError):
    """The work was cancelled by its owner."""


class EngineRestarted(EngineError):
    """The engine's process ended and is replaced; the step it was doing is lost, nothing else."""

    retryable = True


class EngineUnavailable(EngineError):
    """Nobody answers at the engine's address, or the connection to it broke."""

    retryable = True


class RetrievalError(PhloemError):
    """A retrieval failed. Never raised for a search that found nothing."""


class InvalidQuery(RetrievalError):
    """The search asked for makes no sense: its text, filter, index name or another argument."""


class IndexNotFound(RetrievalError):
    """The index does not exist."""


class FieldNotFound(RetrievalError):
    """The index has no such field."""


class RetrievalTimeout(RetrievalError):
    """No complete answer within the time given."""

    retryable = True


class RetrievalUnavailable(RetrievalError):
    """Nobody answers at the address."""

    retryable = True


class RetrievalRefused(RetrievalError):
    """The server refused the credentials or the operation."""


class IncompatibleServer(RetrievalError):
    """What answered is another product, another version, or not a search server."""


class PartialResults(RetrievalError):
    """Part of the search failed or timed out, and partial results were not allowed."""

    retryable = True


class IndexLocked(RetrievalError):
    """Another process holds the index's write lock."""

    retryable = True


class JournalError(PhloemError):
    """The record of runs can't be read or written."""
