"""Bodies of SGLang's POST /generate.

What lives here: sampling parameters and constraints in SGLang's names. What does not: sending
them (`session.py`) and reading the answer (`reply.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from phloem.errors import Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams

__all__ = ["KINDS", "constraint_fields", "sampling"]

KINDS = frozenset({"regex", "json_schema", "choices"})
"""Constraints that have a counterpart. SGLang's `ebnf` is no Lark grammar."""


def sampling(
    params: SamplingParams, ends: Collection[int], seed: int | None, constraint: Constraint | None
) -> dict[str, Any]:
    """`sampling_params`. `ends` are the model's own ends, which the server may not all know."""
    stop_ids = [*params.stop_token_ids, *(() if params.ignore_eos else sorted(ends))]
    fields: dict[str, Any] = {
        "max_new_tokens": params.max_tokens,
        "min_new_tokens": params.min_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "repetition_penalty": params.repetition_penalty,
        "ignore_eos": params.ignore_eos,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": False,
    }
    optional = {
        "stop": list(params.stop),
        "stop_token_ids": stop_ids,
        "stop_regex": list(params.stop_regex),
    }
    fields |= {name: value for name, value in optional.items() if value}
    if seed is not None:
        fields["sampling_seed"] = seed
    return fields | (constraint_fields(constraint) if constraint is not None else {})


def constraint_fields(constraint: Constraint) -> dict[str, str]:
    """The constraint in SGLang's words. Raises `Unsupported`, naming what it can't do."""
    if constraint.after is not None:
        raise Unsupported(
            "SGLang can't begin a constraint after a text (after=)",
            hint="generate the free part in a step of its own, with stop=",
        )
    if constraint.kind == "regex":
        return {"regex": constraint.source}
    if constraint.kind == "json_schema":
        return {"json_schema": constraint.source}
    if constraint.kind == "choices":
        return {"regex": f"({'|'.join(map(_literal, json.loads(constraint.source)))})"}
    raise Unsupported(
        f"SGLang can't enforce a {constraint.kind} grammar",
        hint=f"use one of {', '.join(sorted(KINDS))}",
    )


def _literal(text: str) -> str:
    """`text` as a pattern, escaping no more than every dialect needs (`re.escape` does)."""
    return re.sub(r"([\\.^$|?*+(){}\[\]])", r"\\\1", text)
