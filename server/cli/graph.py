"""`phloem graph` and `phloem check`: what a program compiles to, and what is wrong with it.

What lives here: printing. What does not: the compiler and its findings (`programs/`).
"""

from __future__ import annotations

import json
from pathlib import Path

import typer

from phloem.server.cli.target import load_module, load_program, programs_in

__all__ = ["check", "show"]


def show(target: str, form: str) -> None:
    """Print the graph of the program `target` as Mermaid or JSON."""
    graph = load_program(target).graph
    typer.echo(graph.to_mermaid() if form == "mermaid" else json.dumps(graph.describe(), indent=2))


def check(path: Path, form: str) -> None:
    """Print the findings of all programs in a file; exit code 1 if one is an error."""
    programs = programs_in(load_module(path))
    findings = [finding for program in programs.values() for finding in program.check()]
    for finding in findings:
        typer.echo(finding.to_github() if form == "github" else str(finding))
    if form == "text":
        errors = sum(finding.severity == "error" for finding in findings)
        warnings = len(findings) - errors
        typer.echo(f"{path}: {len(programs)} programs, {errors} errors, {warnings} warnings")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
