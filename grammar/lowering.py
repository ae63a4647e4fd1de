"""Constraint -> the Lark grammar llguidance runs.

What lives here: the dispatch by kind, and `after`. What does not: what a schema or a regex means
(schema/, regex/).
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import time
from collections.abc import Mapping

from phloem.errors import ConstraintError
from phloem.grammar.regex.emit import plain_terminal
from phloem.grammar.regex.nodes import Node
from phloem.grammar.regex.parser import parse_regex
from phloem.grammar.regex.resolve import full_match
from phloem.grammar.regex.words import words
from phloem.grammar.schema.build import build_model
from phloem.grammar.schema.emit import write_rules
from phloem.grammar.schema.model import Model, Objects, Strings
from phloem.grammar.schema.terminals import lark_string
from phloem.grammar.spec import Constraint
from phloem.surrogates import half_of_pair

__all__ = [
    "MAX_SOURCE",
    "lark_string",
    "lower",
    "lower_rules",
    "regex_language",
    "schema_model",
    "wanted_words",
    "with_prelude",
]

MAX_SOURCE = 1_000_000
"""Characters of a constraint's source: five times the largest schema met in practice."""
_MAX_WORDS = 24
_LONGEST_WORD = 60
_TIME_LIMIT = 1.5
"""Seconds for one schema's logic; llguidance's own work comes on top."""


_LARK_WORD = re.compile(
    r""""(?:\\.|[^"\\])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/|<[^>\s]*>|[A-Za-z_][\w-]*"""
)
"""Strings, comments, regexes, special tokens and names, in which "start" may stand."""


@functools.lru_cache(maxsize=64)
def lower(constraint: Constraint) -> str:
    """The grammar of `constraint` without its `after`, as Lark text with the rule `start`."""
    if constraint.kind == "lark":
        return constraint.source
    start, rules = lower_rules(constraint, "")
    return f"start: {start}\n{rules}"


def lower_rules(constraint: Constraint, prefix: str) -> tuple[str, str]:
    """The constraint as the name of a rule and Lark text whose names begin with `prefix`.

    `prefix` is lower-case. A Lark constraint has its own names and is refused.
    """
    text = f"{prefix.upper()}TEXT"
    match constraint.kind:
        case "regex":
            return text, f"{text}: {plain_terminal(regex_language(constraint.source))}\n"
        case "choices":
            # One terminal: as rules, a choice that begins another would hide it.
            options = " | ".join(map(lark_string, json.loads(constraint.source)))
            return text, f"{text}: {options}\n"
        case "json_schema":
            model = schema_model(constraint.source)
            return write_rules(model, prefix, whitespace=constraint.whitespace)
    raise ConstraintError(f"a constraint of kind {constraint.kind!r} can't be part of another")


@functools.lru_cache(maxsize=256)
def regex_language(pattern: str) -> Node:
    """The full matches of a regex in Python's syntax. Raises `ConstraintError`."""
    return full_match(parse_regex(pattern, "python"))


@functools.lru_cache(maxsize=64)
def schema_model(source: str) -> Model:
    """The normal form of a JSON Schema given as JSON text. Raises `ConstraintError`."""
    try:
        return build_model(json.loads(source), time.monotonic() + _TIME_LIMIT)
    except RecursionError as error:
        raise ConstraintError("the schema is nested too deeply to enforce") from error


@functools.lru_cache(maxsize=64)
def wanted_words(constraint: Constraint) -> tuple[bytes, ...]:
    """Words of the patterns in a constraint, that a way to an end may lead over."""
    languages: list[Node] = []
    if constraint.kind == "regex":
        languages.append(regex_language(constraint.source))
    elif constraint.kind == "json_schema":
        for kind in itertools.chain.from_iterable(schema_model(constraint.source).kinds.values()):
            if isinstance(kind, Strings):
                languages += kind.languages
            elif isinstance(kind, Objects):
                languages += [other.language for other in kind.others if other.language]
    found: dict[str, None] = {}
    for word in itertools.chain.from_iterable(map(words, languages)):
        if word and len(word) <= _LONGEST_WORD and half_of_pair(word) is None:
            found[word] = None
        if len(found) == _MAX_WORDS:
            break
    if constraint.kind == "json_schema":
        return tuple(json.dumps(word, ensure_ascii=False)[1:-1].encode() for word in found)
    return tuple(word.encode() for word in found)


def with_prelude(grammar: str, after: str, special_ids: Mapping[str, int]) -> str:
    """`grammar` delayed until `after` was generated, a special token where the model has it."""
    body = _LARK_WORD.sub(_renamed, grammar)
    if after in special_ids:
        return (
            f"start: PHLOEM_FREE <[{special_ids[after]}]> phloem_body\n"
            f"PHLOEM_FREE: /(?s:.*)/\n{body}"
        )
    return (
        "start: phloem_free phloem_body\n"
        f"phloem_free[lazy]: PHLOEM_FREE {lark_string(after)}\nPHLOEM_FREE: /(?s:.*)/\n{body}"
    )


def _renamed(word: re.Match[str]) -> str:
    return "phloem_body" if word[0] == "start" else word[0]
