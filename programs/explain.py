"""What each step of a run computed, reused and missed, and why.

What lives here: `explain`, from events to rows. What does not: printing tables (`server/cli`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phloem.programs.events import Event, StepFinished

__all__ = ["StepReport", "explain"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. Token counts are those of `protocol.Usage`; `ms` is the step's whole time.

    If the step left the cached prefix early, `missed_at` is the position of the first token
    computed anew, `missed_text` its text, `missed_line` the source line ("file:line") that put it
    there, and `missed_tokens` and `missed_ms` what that cost.
    """

    path: str
    node: str | None
    line: int | None
    kind: str
    name: str | None
    prompt: int
    reused: int
    prefilled: int
    forced: int
    generated: int
    scored: int
    ms: float
    missed_at: int | None = None
    missed_text: str | None = None
    missed_line: str | None = None
    missed_tokens: int = 0
    missed_ms: float = 0.0

    def __str__(self) -> str:
        text = (
            f"{self.node or self.kind} (line {self.line}): {self.prompt} prompt tokens, "
            f"{self.reused} reused, {self.prefilled} computed, {self.generated} generated, "
            f"{self.ms:.0f} ms"
        )
        if self.missed_at is not None:
            text += (
                f"; left the cached prefix at token {self.missed_at} ({self.missed_text!r}, from "
                f"{self.missed_line or 'unknown'}), which cost {self.missed_tokens} tokens and "
                f"{self.missed_ms:.0f} ms"
            )
        return text


def explain(events: Sequence[Event]) -> list[StepReport]:
    """A report of every finished step that asked the model, in order."""
    return [
        _report(event)
        for event in events
        if isinstance(event, StepFinished) and event.kind in {"gen", "select"}
    ]


def _report(event: StepFinished) -> StepReport:
    usage, timing, miss = event.usage, event.timing, event.miss
    missed = usage.prompt - miss.position if miss else 0
    return StepReport(
        path=event.path,
        node=event.node,
        line=event.line,
        kind=event.kind,
        name=event.name,
        prompt=usage.prompt,
        reused=usage.reused,
        prefilled=usage.prefilled,
        forced=usage.forced,
        generated=usage.generated,
        scored=usage.scored,
        ms=timing.total_ms,
        missed_at=miss.position if miss else None,
        missed_text=miss.text if miss else None,
        missed_line=miss.origin if miss else None,
        missed_tokens=missed,
        missed_ms=timing.prefill_ms * missed / usage.prefilled if usage.prefilled else 0.0,
    )
