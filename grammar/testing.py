"""For users' tests and ours: does a constraint accept a text, token by token?

What lives here: `accepts`, `accepts_json`, and the setting for the default tokenizer. What does
not: any tokenizer; whoever has a model sets one (`import phloem` does so).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from phloem.errors import ConfigError, ConstraintError
from phloem.grammar.analyser import default_analyser
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.lowering import schema_model
from phloem.grammar.schema.render import render
from phloem.grammar.spec import Constraint

__all__ = [
    "ConstraintError",
    "accepts",
    "accepts_json",
    "default_compiler",
    "set_default_tokenizer",
]

_provider: Callable[[], GrammarCompiler] | None = None
_default: GrammarCompiler | None = None


def set_default_tokenizer(provider: Callable[[], GrammarCompiler]) -> None:
    """Say how the compiler for the default model's tokenizer is made when first needed."""
    global _provider, _default
    _provider, _default = provider, None


def default_compiler() -> GrammarCompiler:
    """The compiler for the default tokenizer. Raises `ConfigError` if none was set."""
    global _default
    if _default is None:
        if _provider is None:
            raise ConfigError(
                "no default tokenizer is set",
                hint="give tokenizer=, or call phloem.grammar.testing.set_default_tokenizer()",
            )
        _default = _provider()
    return _default


def accepts(constraint: Constraint, text: str, *, tokenizer: GrammarCompiler | None = None) -> bool:
    """Whether `text`, encoded by the tokenizer, is a complete text of the constraint.

    `tokenizer` is a `GrammarCompiler` for the tokenizer to use (by default the default model's).
    Each token must be allowed by the mask before it is accepted, and the end of the sequence
    after the last one. Raises `ConstraintError` if the constraint can't be enforced.
    """
    compiler = tokenizer or default_compiler()
    matcher = compiler.matcher(constraint)
    tokens = list(compiler.tokenizer.ll.tokenize_str(text))
    return matcher.accepts_prefix(tokens) == len(tokens) and _ends(matcher, tokens)


def accepts_json(
    schema: Any,
    value: Any,
    *,
    tokenizer: GrammarCompiler | None = None,
    whitespace: bool = False,
) -> bool:
    """Whether some spelling of `value` that the schema's constraint can generate is accepted.

    Tried are compact JSON in the value's own order of members, and in the order that the
    constraint fixes. Raises `ConstraintError` if the schema can't be enforced.
    """
    constraint = default_analyser().build(schema=schema, whitespace=whitespace)
    texts = {json.dumps(value, separators=(",", ":"), ensure_ascii=False)}
    rendered = render(schema_model(constraint.source), value)
    if rendered is not None:
        texts.add(rendered)
    return any(accepts(constraint, text, tokenizer=tokenizer) for text in texts)


def _ends(matcher: Any, tokens: list[int]) -> bool:
    for token in tokens:
        matcher.accept(token)
    return bool(matcher.is_complete())
