"""Constraint -> the Lark grammar llguidance runs.

What lives here: the dispatch by kind, `after`, and the writing of literals and regexes in
Lark's notation. What does not: what a schema or a regex means (schema/, regex/).
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping

from phloem.errors import ConstraintError
from phloem.grammar.regex.emit import plain_terminal
from phloem.grammar.regex.parser import parse_regex
from phloem.grammar.regex.resolve import full_match
from phloem.grammar.schema.build import build_model
from phloem.grammar.schema.emit import write_grammar
from phloem.grammar.schema.model import Model
from phloem.grammar.spec import Constraint

__all__ = ["lark_string", "lower", "schema_model", "with_prelude"]

_TIME_LIMIT = 2.0
"""Seconds for one schema's logic; llguidance's own work comes on top."""


@functools.lru_cache(maxsize=64)
def lower(constraint: Constraint) -> str:
    """The grammar of `constraint` without its `after`, as Lark text with the rule `start`."""
    match constraint.kind:
        case "regex":
            text = full_match(parse_regex(constraint.source, "python"))
            return f"start: TEXT\nTEXT: {plain_terminal(text)}\n"
        case "choices":
            return "start: " + " | ".join(map(lark_string, json.loads(constraint.source))) + "\n"
        case "json_schema":
            model = schema_model(constraint.source)
            return write_grammar(model, whitespace=constraint.whitespace)
        case "lark":
            return constraint.source
    raise ConstraintError(f"unknown kind of constraint: {constraint.kind!r}")


@functools.lru_cache(maxsize=64)
def schema_model(source: str) -> Model:
    """The normal form of a JSON Schema given as JSON text. Raises `ConstraintError`."""
    return build_model(json.loads(source), time.monotonic() + _TIME_LIMIT)


def lark_string(text: str) -> str:
    """`text` as a Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def with_prelude(grammar: str, after: str, special_ids: Mapping[str, int]) -> str:
    """`grammar` delayed until `after` was generated, a special token where the model has it."""
    body = grammar.replace("start:", "phloem_body:", 1)
    if after in special_ids:
        return (
            f"start: PHLOEM_FREE <[{special_ids[after]}]> phloem_body\n"
            f"PHLOEM_FREE: /(?s:.*)/\n{body}"
        )
    return (
        "start: phloem_free phloem_body\n"
        f"phloem_free[lazy]: PHLOEM_FREE {lark_string(after)}\nPHLOEM_FREE: /(?s:.*)/\n{body}"
    )
