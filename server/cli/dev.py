"""`phloem dev`: run a program again at every save of its file, from the first step that changed.

What lives here: printing a run beside the one before it. What does not: keeping what still holds
(`programs/dev.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from phloem.programs.dev import DevReport, DevSession
from phloem.server.cli.arguments import parse_arguments
from phloem.server.cli.model import load_backend
from phloem.server.cli.target import load_program
from phloem.server.settings import load_settings

__all__ = ["dev", "show_report"]


def dev(
    target: str,
    words: Sequence[str],
    pairs: Sequence[str],
    sampling: Mapping[str, Any],
    model: str | None,
    once: bool,
) -> None:
    """Run `target` now and after every change of its file, until interrupted (`once`: only now)."""
    path, program = target.partition(":")[0], load_program(target)
    arguments = parse_arguments(program.function, program.parameters, words, pairs)
    load_backend(load_settings(model=model))
    console = Console(highlight=False, markup=False, emoji=False)
    session = DevSession(path, program.name, arguments, **sampling)
    if once:
        show_report(session.run(), console)
        return
    console.print(f"watching {path}; Ctrl-C ends it")
    try:
        for report in session.watch():
            show_report(report, console)
    except KeyboardInterrupt:
        console.print("stopped")


def show_report(report: DevReport, console: Console) -> None:
    """Print the variables before and after, and what of the run was kept."""
    new = report.state.variables() if report.state else {}
    old = report.previous.variables() if report.previous else {}
    table = Table("variable", "before", "now", box=None, pad_edge=False)
    for name in dict.fromkeys([*old, *new]):
        before, now = (str(values.get(name, "")) for values in (old, new))
        table.add_row(name, "=" if before == now else before, now)
    console.print(table)
    node, line = report.changed or (None, None)
    since = f" from line {line} ({node})" if line is not None else ""
    console.print(
        f"{report.kept} steps kept, {report.anew} anew{since}; "
        f"{report.recomputed} tokens computed, {report.ms:.0f} ms"
    )
    if report.error is not None:
        console.print(f"error: {type(report.error).__name__}: {report.error}")
