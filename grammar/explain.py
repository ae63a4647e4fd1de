"""What `phloem grammar check` tells about a schema or a regex.

What lives here: `explain`, which gathers bounds, forced share, sample texts and what can't be
enforced, as plain data. What does not: printing (`server/cli`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.analyser import default_analyser
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.sample import samples
from phloem.grammar.spec import Bounds, Constraint

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The findings. With `problem`, all but `kind` and the problem's own fields are empty."""

    kind: str
    constraint: Constraint | None = None
    bounds: Bounds = field(default_factory=Bounds)
    forced_share: float | None = None
    """Share of tokens in the samples that the grammar forced; None without a tokenizer."""
    samples: tuple[str, ...] = ()
    sample_tokens: tuple[int, ...] = ()
    problem: str | None = None
    hint: str | None = None
    keyword: str | None = None
    path: str | None = None
    position: int | None = None


def explain(
    source: Any,
    *,
    kind: str | None = None,
    compiler: GrammarCompiler | None = None,
    count: int = 5,
    seed: int = 0,
    budget_s: float = 2.0,
) -> Explanation:
    """Explain a schema, regex, or Lark grammar.

    `source` is a text, or a schema as a dict or type. `kind` is "regex", "json_schema" or
    "lark"; by default JSON text and everything that is no text is a schema, other text a regex.
    With a `compiler`, samples are counted in tokens of its tokenizer. Never raises
    `ConstraintError`: what can't be enforced is in `problem`.
    """
    found = kind or _guess(source)
    argument = {"json_schema": "schema"}.get(found, found)
    analyser = default_analyser()
    try:
        constraint = analyser.build(**{argument: source})
        bounds = analyser.bounds(constraint, budget_s=budget_s)
        texts = tuple(samples(constraint, count, seed=seed))
        counted = [_count(compiler, constraint, text) for text in texts] if compiler else []
    except ConstraintError as error:
        details = error.details
        return Explanation(
            found,
            problem=error.message,
            hint=error.hint,
            keyword=details.get("keyword"),
            path=details.get("path"),
            position=details.get("position"),
        )
    total = sum(tokens for tokens, _ in counted)
    share = sum(forced for _, forced in counted) / total if total else None
    return Explanation(
        found, constraint, bounds, share, texts, tuple(tokens for tokens, _ in counted)
    )


def _guess(source: Any) -> str:
    if not isinstance(source, str):
        return "json_schema"
    try:
        return "json_schema" if isinstance(json.loads(source), dict | bool) else "regex"
    except ValueError:
        return "regex"


def _count(compiler: GrammarCompiler, constraint: Constraint, text: str) -> tuple[int, int]:
    """Tokens of one sample, and how many of them were forced where they stand."""
    matcher = compiler.matcher(constraint)
    tokens = list(compiler.tokenizer.ll.tokenize_str(text))
    forced = 0
    for token in tokens:
        forced += matcher.forced()[:1] == [token]
        matcher.accept(token)
    return len(tokens), forced
