"""`phloem grammar check`: whether a schema or regex can be enforced, and its bounds.

What lives here: reading the file and printing. What does not: the analysis (`grammar/`).
"""

from __future__ import annotations

from pathlib import Path

import typer

from phloem.errors import ConfigError
from phloem.grammar.analyser import default_analyser

__all__ = ["check"]


def check(path: Path) -> None:
    """Print what is known of the constraint in a file: JSON Schema if it ends in .json, else a
    regex. Raises `ConstraintError` naming what can't be enforced.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", hint="give a text file") from error
    analyser = default_analyser()
    if path.suffix == ".json":
        constraint = analyser.build(schema=source)
    else:
        constraint = analyser.build(regex=source.rstrip("\n"))
    bounds = analyser.bounds(constraint)
    typer.echo(f"{path}: {constraint.kind}, can be enforced")
    for unit, low, high in (
        ("characters", bounds.min_chars, bounds.max_chars),
        ("tokens", bounds.min_tokens, bounds.max_tokens),
    ):
        typer.echo(f"  {unit}: {_shown(low)} to {_shown(high)}")
    if bounds.empty:
        typer.echo("  no text satisfies it")
    for note in bounds.notes:
        typer.echo(f"  {note}")


def _shown(length: int | None) -> str:
    return "unknown" if length is None else str(length)
