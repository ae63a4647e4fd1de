"""What crosses the border between the two processes, and its form: JSON.

What lives here: a record for each message, and lists of them to bytes and back. What does not:
how bytes travel (`channel.py`) and what the messages lead to.

Every record is plain values and names its kind; pydantic checks them against their types on both
sides. No code and no tensor can cross. Instants are of `time.monotonic()`, which is one clock for
all processes of a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_core import to_jsonable_python

from phloem import errors
from phloem.errors import ConfigError, EngineError, PhloemError, Where
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Capabilities, ChatFormat
from phloem.runtime.engine.messages import Computed, Generated, Progress, Scored
from phloem.runtime.engine.stats import Stats
from phloem.runtime.engine.work import Flush, Generate, Pin, Score
from phloem.surrogates import spelled

__all__ = [
    "Broken",
    "Cancel",
    "ErrorRecord",
    "Expect",
    "Flush",
    "FromChild",
    "Load",
    "LoadFailed",
    "Loading",
    "Log",
    "Ping",
    "Pong",
    "Prepare",
    "Ready",
    "Reply",
    "Stop",
    "Submit",
    "ToChild",
    "decode_from_child",
    "decode_to_child",
    "encode_from_child",
    "encode_to_child",
    "frame_to_child",
]

_Work = Annotated[Generate | Score | Pin | Flush, Field(discriminator="kind")]
_Message = Annotated[Progress | Generated | Scored | Computed, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """One of `phloem.errors` as plain values; details that JSON can't say are told by `repr`."""

    name: str
    message: str
    hint: str | None
    where: Where | None
    details: dict[str, Any]

    @classmethod
    def of(cls, error: PhloemError) -> ErrorRecord:
        """The record of an error; of a class that others can't know, that of the nearest known."""
        known = next(c for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
        details = to_jsonable_python(error.details, fallback=repr, inf_nan_mode="constants")
        hint = None if error.hint is None else spelled(error.hint)
        return cls(known.__name__, spelled(error.message), hint, error.where, details)

    def error(self) -> PhloemError:
        """The error again."""
        found = getattr(errors, self.name, None)
        if not (isinstance(found, type) and issubclass(found, PhloemError)):
            found = EngineError
        return found(self.message, hint=self.hint, where=self.where, **self.details)


# To the child


@dataclass(frozen=True, slots=True)
class Load:
    """The first message: call `loader` ("module:function") for a model, and make an engine for it
    with `settings` (those of `EmbeddedBackend`). `log_level` is the least that is forwarded."""

    loader: str
    arguments: dict[str, Any]
    settings: dict[str, Any]
    log_level: int
    kind: Literal["load"] = "load"


@dataclass(frozen=True, slots=True)
class Submit:
    """Begin job number `job` on the lane of a session."""

    job: int
    lane: int
    work: _Work
    kind: Literal["submit"] = "submit"


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a job; its owner has been told."""

    job: int
    kind: Literal["cancel"] = "cancel"


@dataclass(frozen=True, slots=True)
class Expect:
    """What is known of the next use of a lane's KV; None: the session is over."""

    lane: int
    next_use: int | None
    place: str = ""
    kind: Literal["expect"] = "expect"


@dataclass(frozen=True, slots=True)
class Prepare:
    """Compile these soon."""

    constraints: list[Constraint]
    kind: Literal["prepare"] = "prepare"


@dataclass(frozen=True, slots=True)
class Ping:
    """Say, between two passes of the engine, that all is well."""

    number: int
    kind: Literal["ping"] = "ping"


@dataclass(frozen=True, slots=True)
class Stop:
    """End all jobs and the process."""

    kind: Literal["stop"] = "stop"


ToChild: TypeAlias = Load | Submit | Cancel | Expect | Prepare | Ping | Stop

# From the child


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading has come to."""

    phase: str
    kind: Literal["loading"] = "loading"


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded: all that a process without weights needs to know of it. `pool_bytes`
    is what the KV pool will take once it is full."""

    capabilities: Capabilities
    name: str
    tokenizer: str
    eos_ids: frozenset[int]
    chat_format: ChatFormat | None
    chat_problem: str
    pool_bytes: int
    bos: int | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There will be no engine, for this reason."""

    error: ErrorRecord
    kind: Literal["load_failed"] = "load_failed"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a job has come to."""

    job: int
    message: _Message
    kind: Literal["reply"] = "reply"


@dataclass(frozen=True, slots=True)
class Broken:
    """A job ended with an error."""

    job: int
    error: ErrorRecord
    kind: Literal["broken"] = "broken"


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping, with the engine's counters once there is one."""

    number: int
    stats: Stats | None
    kind: Literal["pong"] = "pong"


@dataclass(frozen=True, slots=True)
class Log:
    """A line of the child's log."""

    logger: str
    level: int
    text: str
    kind: Literal["log"] = "log"


FromChild: TypeAlias = Loading | Ready | LoadFailed | Reply | Broken | Pong | Log

_CONFIG = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64")
_ONE_TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(
    Annotated[ToChild, Field(discriminator="kind")], config=_CONFIG
)
_TO_CHILD: TypeAdapter[list[ToChild]] = TypeAdapter(
    list[Annotated[ToChild, Field(discriminator="kind")]], config=_CONFIG
)
_FROM_CHILD: TypeAdapter[list[FromChild]] = TypeAdapter(
    list[Annotated[FromChild, Field(discriminator="kind")]], config=_CONFIG
)


def encode_to_child(message: ToChild) -> bytes:
    """One message. Raises `ConfigError` for a text that is no Unicode (lone surrogates)."""
    try:
        return _ONE_TO_CHILD.dump_json(message)
    except ValueError as error:
        raise ConfigError(
            f"a text of the request can't be encoded: {error}",
            hint="remove lone surrogates (U+D800 to U+DFFF)",
        ) from None


def frame_to_child(messages: Sequence[bytes]) -> bytes:
    """Encoded messages as one frame."""
    return b"[" + b",".join(messages) + b"]"


def decode_to_child(frame: bytes) -> list[ToChild]:
    """The messages of a frame."""
    return _TO_CHILD.validate_json(frame)


def encode_from_child(messages: Sequence[FromChild]) -> bytes:
    """Messages as one frame."""
    return _FROM_CHILD.dump_json(list(messages))


def decode_from_child(frame: bytes) -> list[FromChild]:
    """The messages of a frame."""
    return _FROM_CHILD.validate_json(frame)
