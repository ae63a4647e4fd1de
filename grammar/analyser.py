"""From what a user writes to a `Constraint`, and what can be known of it before any token.

What lives here: the implementation of `spec.Analyser`. What does not: tokenizers, masks
(compiler.py), and the meaning of single keywords (schema/, regex/).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from phloem.errors import ConstraintError
from phloem.grammar.analysis import automaton
from phloem.grammar.lowering import MAX_SOURCE, lower, regex_language, schema_model
from phloem.grammar.python_types import constraint_of_type, schema_of_type, value_of_text
from phloem.grammar.quote import locate, quote_constraint
from phloem.grammar.regex.lengths import has_boolean, lengths
from phloem.grammar.schema.lengths import schema_lengths
from phloem.grammar.schema.strings import is_empty
from phloem.grammar.spec import Bounds, Constraint, Finish, Span
from phloem.surrogates import half_of_pair

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
        _check_texts(regex=regex, lark=lark, after=after)
        if finish not in {None, "free", "force"}:
            raise ConstraintError(f"finish is {finish!r}", hint='give "free" or "force"')
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
        if half_of_pair(found.source) is not None:
            raise ConstraintError(
                f"the {found.kind} holds half of a surrogate pair, which no text can",
                hint="write the character itself, or both halves",
            )
        if len(found.source) > MAX_SOURCE:
            raise ConstraintError(
                f"the {found.kind} has {len(found.source):,} characters; "
                f"at most {MAX_SOURCE:,} are compiled",
                hint="split it, or take out descriptions and examples",
            )
        if finish is None:
            finish = "force" if found.kind == "json_schema" else "free"
        # Behind the empty text a constraint holds from the start.
        made = Constraint(found.kind, found.source, after or None, finish, whitespace)
        _check(made)
        return made

    def bounds(self, constraint: Constraint, *, budget_s: float = 0.5) -> Bounds:
        """See `spec.Analyser`. Lengths are without what `after` demands before the text."""
        match constraint.kind:
            case "choices":
                sizes = [len(choice) for choice in json.loads(constraint.source)]
                return Bounds(min(sizes), max(sizes))
            case "regex":
                return _regex_bounds(constraint.source, budget_s)
            case "json_schema":
                low, high = schema_lengths(schema_model(constraint.source))
                # White space is optional: the shortest text has none, the longest is unknown.
                return Bounds(low, None if constraint.whitespace else high)
        return Bounds(notes=("the lengths of a Lark grammar are not known",))

    def quote(self, passages: Sequence[tuple[str, str]]) -> Constraint:
        """See `spec.Analyser`."""
        return quote_constraint(passages)

    def locate(self, passages: Sequence[tuple[str, str]], quote: str) -> tuple[Span, ...]:
        """See `spec.Analyser`."""
        return locate(passages, quote)

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


def _check_texts(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise ConstraintError(f"{name} must be a text, not {type(value).__name__}")


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
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"the schema is not JSON: {error}") from error
    elif not isinstance(schema, dict | bool):
        schema = schema_of_type(schema)
    if not isinstance(schema, dict | bool):
        raise ConstraintError("a JSON Schema is an object or a boolean")
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ConstraintError("the schema is nested too deeply to enforce") from error
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"the schema can't be written as JSON: {error}") from error


def _regex_bounds(pattern: str, budget_s: float) -> Bounds:
    language = regex_language(pattern)
    if is_empty(language):
        return Bounds(0, 0, empty=True, notes=("no text matches the regex",))
    low, high = lengths(language)
    if not has_boolean(language):
        return Bounds(low, high)
    exact = automaton(pattern, budget_s=budget_s)
    if exact is None:
        return Bounds(low, high, notes=("lookaround: the true bounds may be tighter",))
    return Bounds(exact.min_chars, exact.max_chars, empty=exact.empty)


@functools.lru_cache(maxsize=64)
def _check(constraint: Constraint) -> None:
    """Raise `ConstraintError` if the engine can't run the constraint."""
    grammar = LLMatcher.grammar_from_lark(lower(constraint))
    # Without a tokenizer, so that a Lark grammar may name special tokens.
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        raise ConstraintError(
            f"the {constraint.kind} can't be enforced: {' '.join(messages[0].split())[:300]}"
        )
    if constraint.kind == "regex" and is_empty(regex_language(constraint.source)):
        raise ConstraintError("no text matches the regex", pattern=constraint.source)
