"""Bodies of POST /chat/completions.

What lives here: sampling parameters and constraints in OpenAI's names, and the refusal of those
that have none there. What does not: sending them (`session.py`).
"""

from __future__ import annotations

import json
from typing import Any

from phloem.errors import Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, describe

__all__ = ["KINDS", "body_of"]

KINDS = frozenset({"json_schema"})
_NAMES = {
    "max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "stop", "seed",
    "stream",
}  # fmt: skip


def body_of(params: SamplingParams, constraint: Constraint | None, limit: str) -> dict[str, Any]:
    """Everything but model and messages. `limit` is the server's name for `max_tokens`.

    Raises `Unsupported`, naming the parameter or the kind of constraint.
    """
    unknown = sorted(set(describe(params)) - _NAMES)
    if unknown:
        raise Unsupported(
            f"a chat API has no {', '.join(unknown)}",
            hint="leave it out, or use RuntimeEndpoint or the embedded engine",
        )
    body: dict[str, Any] = {
        limit: params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(params, name):
            body[name] = getattr(params, name)
    if params.stop:
        body["stop"] = list(params.stop)
    if constraint is not None:
        body["response_format"] = _format(constraint)
    return body


def _format(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind not in KINDS or constraint.after is not None:
        what = f"a {constraint.kind} constraint"
        raise Unsupported(
            f"a chat API can't enforce {what}{' after a text' if constraint.after else ''}",
            hint="use a JSON Schema, or RuntimeEndpoint or the embedded engine",
        )
    schema = {"name": "answer", "strict": True, "schema": json.loads(constraint.source)}
    return {"type": "json_schema", "json_schema": schema}
