"""A run's effects up to a step, that step perhaps changed.

What lives here: the choice of effects that a rewound run takes over. What does not: running
(`manager.py`).

Effects are kept in the order they happened, over all branches. Everything after the step in
that order is dropped: what a sibling branch did later is done again, with the same random key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phloem.server.http.replies import RequestError
from phloem.server.journal.recording import StoredEffect
from phloem.server.programs.models import RewindRequest

__all__ = ["rewound"]


def rewound(effects: Sequence[StoredEffect], asked: RewindRequest) -> list[StoredEffect]:
    """The effects before the step, and the step itself with its new value if one is set.

    Raises `RequestError` if the step is not found, or found more than once.
    """
    at = _find(effects, asked)
    kept = list(effects[:at])
    if "set" in asked.model_fields_set:
        step = effects[at]
        if step.entry is None:
            raise _refused("the step is a call that is not known to have ended", "set")
        kept.append(StoredEffect(step.path, step.seq, _changed(step.entry, asked.set)))
    return kept


def _find(effects: Sequence[StoredEffect], asked: RewindRequest) -> int:
    if (asked.node is None) == (asked.seq is None):
        raise _refused("name the step either by `node` or by `path` and `seq`", "node")
    found = [
        at
        for at, effect in enumerate(effects)
        if (
            (effect.entry or {}).get("node") == asked.node
            if asked.node is not None
            else (effect.path, effect.seq) == (asked.path, asked.seq)
        )
    ]
    if not found:
        raise _refused("the run has no such step", "node" if asked.node else "seq")
    if len(found) > 1:
        places = ", ".join(f"{effects[at].path!r}/{effects[at].seq}" for at in found)
        raise _refused(f"the node was passed {len(found)} times: {places}", "node")
    return found[0]


def _changed(entry: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The entry as if the step had ended with `value`: text is tokenised anew, so the tokens
    that were recorded go."""
    outcome: Any = value
    if entry["kind"] == "gen":
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        fresh = {"text": text, "tokens": [], "logprobs": [], "finish_reason": "stop"}
        outcome = [{**entry["outcome"][0], **fresh}]
    elif entry["kind"] == "select":
        if not isinstance(value, str):
            raise _refused("the value of a choice is one of its texts", "set")
        outcome = {**entry["outcome"], "choice": value}
    return {**entry, "outcome": outcome, "session": None}


def _refused(message: str, param: str) -> RequestError:
    return RequestError(400, message, code="invalid_step", param=param)
