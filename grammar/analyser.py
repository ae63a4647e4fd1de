"""From what a user writes to a `Constraint`, and what can be known of it before any token.

What lives here: the implementation of `spec.Analyser`. What does not: tokenizers, masks
(compiler.py), and the meaning of single keywords (schema/, regex/).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from phloem.errors import ConstraintError
from phloem.grammar.engine import byte_tokenizer
from phloem.grammar.lowering import lower
from phloem.grammar.python_types import constraint_of_type, schema_of_type, value_of_text
from phloem.grammar.spec import Bounds, Constraint, Finish

__all__ = ["DefaultAnalyser", "default_analyser"]


class DefaultAnalyser:
    """`spec.Analyser`; stateless."""

    def build(
        self,
        *,
        regex: str | None = None,
        schema: Any = None,
        type: Any = None,  # noqa: A002 - the public name of the argument of `gen`
        choices: Sequence[str] | None = None,
        lark: str | None = None,
        after: str | None = None,
        finish: Finish | None = None,
        whitespace: bool = False,
    ) -> Constraint:
        """See `spec.Analyser`."""
        given = {"regex": regex, "schema": schema, "type": type, "choices": choices, "lark": lark}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise ConstraintError(
                f"exactly one source of a constraint is needed, got {', '.join(names) or 'none'}",
                hint="give one of regex=, schema=, type=, choices=, lark=",
            )
        if regex is not None:
            found = Constraint("regex", regex)
        elif choices is not None:
            found = Constraint("choices", _choices_text(choices))
        elif lark is not None:
            found = Constraint("lark", lark)
        elif type is not None:
            found = constraint_of_type(type)
        else:
            found = Constraint("json_schema", _schema_text(schema))
        if finish is None:
            finish = "force" if found.kind == "json_schema" else "free"
        made = Constraint(found.kind, found.source, after, finish, whitespace)
        _check(made)
        return made

    def bounds(self, constraint: Constraint, *, budget_s: float = 0.5) -> Bounds:
        """See `spec.Analyser`."""
        return Bounds()

    def parse(self, constraint: Constraint, text: str, target: Any = None) -> Any:
        """See `spec.Analyser`."""
        if constraint.after is not None:
            text = text.partition(constraint.after)[2]
        if target is not None:
            return value_of_text(text, constraint.kind, target)
        if constraint.kind != "json_schema":
            return text
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConstraintError(f"the text is not JSON: {error}", text=text) from error


def default_analyser() -> DefaultAnalyser:
    """The analyser `programs` finds under the name "analyser"."""
    return DefaultAnalyser()


def _choices_text(choices: Sequence[str]) -> str:
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintError("choices must be a sequence of strings", choices=choices)
    if not choices:
        raise ConstraintError("the list of choices is empty", hint="give at least one")
    return json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)


def _schema_text(schema: Any) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ConstraintError(f"the schema is not JSON: {error}") from error
    elif not isinstance(schema, dict | bool):
        schema = schema_of_type(schema)
    if not isinstance(schema, dict | bool):
        raise ConstraintError("a JSON Schema is an object or a boolean")
    return json.dumps(schema, ensure_ascii=False)


def _check(constraint: Constraint) -> None:
    grammar = LLMatcher.grammar_from_lark(lower(constraint))
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if matcher.is_error():
        raise ConstraintError(
            f"the {constraint.kind} can't be enforced: {matcher.get_error().splitlines()[0]}"
        )
