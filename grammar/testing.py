"""For users' tests and ours: does a constraint accept a text, token by token?

What lives here: `accepts`, `accepts_json`, and what may be given as a tokenizer. What does not:
any tokenizer; the default one is set from above (defaults.py).
"""

from __future__ import annotations

import json
from typing import Any

from phloem.errors import ConfigError, ConstraintError
from phloem.grammar import defaults
from phloem.grammar.analyser import default_analyser
from phloem.grammar.checked import CheckedMatcher
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.defaults import default_tokenizer
from phloem.grammar.lowering import schema_model
from phloem.grammar.matcher import EngineMatcher
from phloem.grammar.schema.dialects import Dialect
from phloem.grammar.schema.render import render
from phloem.grammar.spec import Constraint

__all__ = [
    "ConstraintError",
    "accepts",
    "accepts_json",
    "compiler_of",
    "default_compiler",
    "set_default_tokenizer",
]

_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>")
_default: GrammarCompiler | None = None


def set_default_tokenizer(maker: Any) -> None:
    """Say what makes the default tokenizer; see `defaults.set_default_tokenizer`."""
    global _default
    _default = None
    defaults.set_default_tokenizer(maker)


def default_compiler() -> GrammarCompiler:
    """The compiler for the default tokenizer. Raises `ConfigError` if none was set."""
    global _default
    if _default is None:
        _default = compiler_of(default_tokenizer())
    return _default


def compiler_of(tokenizer: Any) -> GrammarCompiler:
    """A `GrammarCompiler` for a tokenizer in one of the forms people hold.

    Taken are a `GrammarCompiler`, the text of a `tokenizer.json`, a `tokenizers.Tokenizer`
    (anything with `to_str`), a tokenizer with `to_json`, and the text side of a model (anything
    with `tokenizer` and `eos_ids`). Raises `ConfigError` for anything else.
    """
    if isinstance(tokenizer, GrammarCompiler):
        return tokenizer
    if hasattr(tokenizer, "tokenizer") and hasattr(tokenizer, "eos_ids"):
        inner = tokenizer.tokenizer
        return GrammarCompiler(inner.to_json(), inner.vocab_size, sorted(tokenizer.eos_ids))
    for method in ("to_str", "to_json"):
        if hasattr(tokenizer, method):
            tokenizer = getattr(tokenizer, method)()
    if not isinstance(tokenizer, str):
        raise ConfigError(
            f"{type(tokenizer).__name__} is no tokenizer",
            hint="give a GrammarCompiler, a tokenizers.Tokenizer or the text of a tokenizer.json",
        )
    data = json.loads(tokenizer)
    ids = {token["content"]: int(token["id"]) for token in data.get("added_tokens", ())}
    vocab = data["model"]["vocab"]
    ids.update((text, vocab[text]) for text in _END_TOKENS if text in vocab)
    ends = [ids[text] for text in _END_TOKENS if text in ids]
    if not ends:
        raise ConfigError(
            "the tokenizer has no known end-of-sequence token",
            hint="make a GrammarCompiler with eos_ids",
        )
    return GrammarCompiler(tokenizer, max(len(vocab), max(ids.values()) + 1), ends)


def accepts(constraint: Constraint, text: str, *, tokenizer: Any = None) -> bool:
    """Whether `text`, encoded by the tokenizer, is a complete text of the constraint.

    `tokenizer` is what `compiler_of` takes; by default the default model's. Every token must be
    allowed where it stands, and the end of the sequence after the last one. Raises
    `ConstraintError` if the constraint can't be enforced.
    """
    compiler = default_compiler() if tokenizer is None else compiler_of(tokenizer)
    matcher = compiler.matcher(constraint)
    tokens = list(compiler.tokenizer.ll.tokenize_str(text))
    return matcher.accepts_prefix(tokens) == len(tokens) and _ends(matcher, tokens)


def accepts_json(
    schema: Any, value: Any, *, tokenizer: Any = None, whitespace: bool = False
) -> bool:
    """Whether some spelling of `value` that the schema's constraint can generate is accepted.

    Tried are compact JSON in the value's own order of members, and in the order that the
    constraint fixes. Raises `ConstraintError` if the schema can't be enforced.
    """
    compiler = default_compiler() if tokenizer is None else compiler_of(tokenizer)
    constraint = default_analyser().build(schema=schema, whitespace=whitespace)
    texts = {json.dumps(value, separators=(",", ":"), ensure_ascii=False)}
    rendered = render(schema_model(constraint.source), value)
    # For draft 4 alone 1.0 is another value than 1, which the canonical form would write.
    if rendered is not None and (_draft(constraint) > 4 or not _holds_whole_float(value)):
        texts.add(rendered)
    return any(accepts(constraint, text, tokenizer=compiler) for text in texts)


def _draft(constraint: Constraint) -> int:
    return Dialect.of(json.loads(constraint.source)).draft


def _holds_whole_float(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_whole_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer()


def _ends(matcher: EngineMatcher | CheckedMatcher, tokens: list[int]) -> bool:
    for token in tokens:
        matcher.accept(token)
    return matcher.is_complete()
