"""`phloem graph` and `phloem check`: what a program compiles to, and what is wrong with it.

What lives here: printing. What does not: the compiler and its findings (`programs/compiler`).
"""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from phloem.errors import ConfigError
from phloem.server.cli.target import load_module, load_program, programs_in

__all__ = ["check", "show"]


def show(target: str, form: str) -> None:
    """Print the graph of the program `target` as Mermaid or JSON."""
    graph = load_program(target).graph
    text = graph.to_mermaid() if form == "mermaid" else json.dumps(graph.to_json(), indent=2)
    typer.echo(text)
