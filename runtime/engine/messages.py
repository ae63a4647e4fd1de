"""What the engine tells the owner of a job: progress, one outcome, or one error.

What lives here: plain records that name their kind, delivered in order through `Job.deliver`.
What does not: how they reach an event loop (`runtime/mailbox.py`) or another process (`host/`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from phloem.errors import PhloemError
from phloem.programs.protocol import (
    FinishReason,
    ScoredChoice,
    Timing,
    TokenEvent,
    TokenLogprob,
    Usage,
)

__all__ = ["Computed", "Deliver", "Failed", "Generated", "Message", "Progress", "Scored"]


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of a generation, which stand from `base` on: the prompt's tokens kept."""

    event: TokenEvent
    base: int
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class Generated:
    """A generation ended. The session's tokens are prompt[:base] + tokens.

    Of these, the first `computed` have been through the decoder. Of the prompt's, the first
    `reusable` could have come from the cache.
    """

    base: int
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop: str | None
    logprobs: tuple[TokenLogprob, ...]
    usage: Usage
    timing: Timing
    computed: int
    reusable: int
    kind: Literal["generated"] = "generated"


@dataclass(frozen=True, slots=True)
class Scored:
    """Choices were scored, in the order given."""

    choices: tuple[ScoredChoice, ...]
    usage: Usage
    timing: Timing
    kind: Literal["scored"] = "scored"


@dataclass(frozen=True, slots=True)
class Computed:
    """A prefix was computed and pinned."""

    tokens: int
    kind: Literal["computed"] = "computed"


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended with this error."""

    error: PhloemError


Message: TypeAlias = Progress | Generated | Scored | Computed | Failed
Deliver: TypeAlias = Callable[[Message], None]
"""Called on the engine's thread; must not block."""
