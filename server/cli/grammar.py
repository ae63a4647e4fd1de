"""`phloem grammar check`: whether a schema or regex can be enforced, and what it amounts to.

What lives here: reading the file and printing. What does not: the analysis (`grammar/explain.py`).
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phloem.errors import ConfigError, ConstraintError, ModelNotFound
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.explain import Explanation, explain
from phloem.grammar.testing import default_compiler

__all__ = ["check"]


def check(path: Path) -> None:
    """Print what is known of the constraint in a file: JSON Schema if it ends in .json, else a
    regex. Raises `ConstraintError` naming what can't be enforced.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", hint="give a text file") from error
    kind = "json_schema" if path.suffix == ".json" else "regex"
    compiler = _compiler()
    found = explain(source.rstrip("\n"), kind=kind, compiler=compiler)
    if found.problem is not None:
        raise ConstraintError(found.problem, hint=found.hint)
    _print(path, found, counted=compiler is not None)


def _compiler() -> GrammarCompiler | None:
    """For the default model's tokenizer, where the model is here."""
    try:
        return default_compiler()
    except ModelNotFound:
        return None


def _print(path: Path, found: Explanation, *, counted: bool) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    bounds = found.bounds
    console.print(f"{path}: {found.kind}, can be enforced")
    console.print(f"  characters: {_range(bounds.min_chars, bounds.max_chars)}")
    if not counted:
        console.print("  tokens: unknown without a model (phloem model pull)")
    elif found.sample_tokens:
        tokens = _range(min(found.sample_tokens), max(found.sample_tokens))
        console.print(f"  tokens: {tokens} in the samples, {found.forced_share or 0:.0%} forced")
    if bounds.empty:
        console.print("  no text satisfies it")
    for note in bounds.notes:
        console.print(f"  {note}")
    if found.samples:
        console.print("  samples:")
    for sample in found.samples:
        console.print(f"    {sample}", soft_wrap=True)


def _range(low: int | None, high: int | None) -> str:
    if high is not None:
        return f"{low or 0} to {high}"
    return "unknown" if low is None else f"at least {low}"
