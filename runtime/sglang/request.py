"""Bodies of SGLang's POST /generate.

What lives here: sampling parameters and constraints in SGLang's names. What does not: sending
them (`session.py`) and reading the answer (`reply.py`).

What a constraint looks like depends on the server's grammar backend. llguidance, which phloem's
own servers run too, is sent the very grammar that the embedded engine would use, so it allows
the very same tokens. Others are sent the source, in their own dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from phloem.errors import Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams

__all__ = ["constraint_fields", "kinds", "sampling"]

_LARK = frozenset({"llguidance", "phloem"})
_SOURCES = frozenset({"regex", "json_schema", "choices"})


def kinds(grammar: str) -> frozenset[str]:
    """The kinds of constraint that a server with this grammar backend can enforce."""
    if grammar == "none":
        return frozenset()
    return _SOURCES | {"lark"} if grammar in _LARK else _SOURCES


def sampling(params: SamplingParams, ends: Collection[int], seed: int | None) -> dict[str, Any]:
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
    return fields


def constraint_fields(
    constraint: Constraint, grammar: str, portable: Callable[[Constraint], str]
) -> dict[str, str]:
    """The constraint in the words of the server's `grammar` backend; `portable` gives its Lark.

    Raises `Unsupported`, naming what the server can't do, and what `portable` raises.
    """
    if constraint.kind not in kinds(grammar):
        able = ", ".join(sorted(kinds(grammar))) or "no constraint at all"
        raise Unsupported(
            f"the server's grammar backend ({grammar}) can't enforce a {constraint.kind} grammar",
            hint=f"start it with --grammar-backend llguidance; this one takes {able}",
        )
    if grammar in _LARK:
        plain = constraint.after is None and not constraint.whitespace
        if grammar == "phloem" and constraint.kind == "json_schema" and plain:
            return {"json_schema": constraint.source}
        return {"ebnf": portable(constraint)}
    field, source = _source(constraint)
    if constraint.after is None:
        return {field: source}
    if grammar != "xgrammar":
        raise Unsupported(
            f"the server's grammar backend ({grammar}) can't begin after a text (after=)",
            hint="start it with --grammar-backend llguidance or xgrammar",
        )
    return {"structural_tag": json.dumps(_delayed(constraint.after, field, source))}


def _source(constraint: Constraint) -> tuple[str, str]:
    if constraint.kind == "choices":
        return "regex", f"({'|'.join(map(_literal, json.loads(constraint.source)))})"
    return constraint.kind, constraint.source


def _delayed(after: str, field: str, source: str) -> dict[str, Any]:
    """xgrammar's structural tag for: any text up to `after`, then the constraint."""
    free = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": after}
    content: dict[str, Any] = {"type": "regex", "pattern": source}
    if field == "json_schema":
        content = {"type": "json_schema", "json_schema": json.loads(source)}
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": [free, content]}}


def _literal(text: str) -> str:
    """`text` as a pattern, escaping no more than every dialect needs (`re.escape` does)."""
    return re.sub(r"([\\.^$|?*+(){}\[\]])", r"\\\1", text)
