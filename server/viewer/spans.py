"""Texts of a step cut into spans that look different.

What lives here: what of a prompt was reused, which tokens of an output were likely, which were
forced. What does not: colours (static/traces.css).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.trace.steps import Step

__all__ = ["PromptView", "Span", "output_spans", "prompt_view"]

PROMPT = 200_000
"""Characters of a prompt that are shown at most: its end."""
_STEPS = (0.9, 0.7, 0.5, 0.25)
"""Probabilities that part the classes of heat: 0 is likely, 4 is a surprise."""


@dataclass(frozen=True, slots=True)
class Span:
    """Text with one look. `heat` None: no probability is known."""

    text: str
    heat: int | None = None
    forced: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class PromptView:
    """A prompt: `hidden` characters that are not shown, then what was reused, then the rest.
    `known` is whether the engine told how much was reused."""

    hidden: int
    reused: str
    computed: str
    known: bool


def prompt_view(step: Step, limit: int = PROMPT) -> PromptView:
    """The step's prompt, its last `limit` characters."""
    hidden = max(0, len(step.prompt) - limit)
    border = step.reused_chars
    at = max(hidden, min(border or 0, len(step.prompt)))
    return PromptView(hidden, step.prompt[hidden:at], step.prompt[at:], border is not None)


def output_spans(step: Step) -> tuple[Span, ...]:
    """The step's text: a span for each token whose probability is known, cut where forced
    tokens begin and end."""
    text = step.text
    tokens = _aligned(text, step.logprobs)
    forced = list(_forced(step))
    cuts = {0, len(text)}
    cuts.update(edge for start, end, _ in tokens for edge in (start, end))
    cuts.update(min(edge, len(text)) for start, end, _ in forced for edge in (start, end))
    spans = []
    for start, end in itertools.pairwise(sorted(cuts)):
        token = _at(tokens, start)
        spans.append(
            Span(
                text[start:end],
                None if token is None else _heat(token["logprob"]),
                _at(forced, start) is not None,
                "" if token is None else _title(token),
            )
        )
    return tuple(spans)


_Placed = tuple[int, int, Mapping[str, Any]]
"""Something in a text: [start, end) and what it is."""


def _at(placed: Sequence[_Placed], position: int) -> Mapping[str, Any] | None:
    """What stands at a position; `placed` is in order, without overlaps."""
    last = bisect.bisect_right(placed, position, key=lambda item: item[0]) - 1
    return placed[last][2] if last >= 0 and position < placed[last][1] else None


def _aligned(text: str, logprobs: Sequence[Mapping[str, Any]]) -> list[_Placed]:
    """Where in `text` each token stands. The first may begin in the prompt (a healed border), the
    last may have been cut by a stop; if nothing fits, no token is placed."""
    joined = "".join(item["text"] for item in logprobs)
    lead = joined.find(text) if text else -1
    if lead < 0 and not text.startswith(joined):
        return []
    found = []
    at = -max(lead, 0)
    for item in logprobs:
        start, end = max(0, at), min(len(text), at + len(item["text"]))
        if end > start:
            found.append((start, end, item))
        at += len(item["text"])
    return found


def _forced(step: Step) -> Iterator[_Placed]:
    at = 0
    for piece in step.pieces:
        for start, end in piece.forced_spans:
            yield at + start, at + end, {}
        at += len(piece.text)


def _heat(logprob: float) -> int:
    probability = math.exp(logprob)
    return sum(probability < bound for bound in _STEPS)


def _title(token: Mapping[str, Any]) -> str:
    lines = [f"{token['text']!r}  {math.exp(token['logprob']):.1%}"]
    lines += [f"{text!r}  {math.exp(logprob):.1%}" for _, text, logprob in token.get("top") or ()]
    return "\n".join(dict.fromkeys(lines))
