"""`phloem run`: one run of a program, its text as it comes, then its value and its trace.

What lives here: the order of things in one run. What does not: what a line looks like
(`transcript.py`, `table.py`) and what an argument means (`arguments.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from phloem.programs.events import Event, RunFinished
from phloem.server.cli.arguments import parse_arguments
from phloem.server.cli.model import load_backend
from phloem.server.cli.table import print_trace
from phloem.server.cli.target import load_program
from phloem.server.cli.transcript import Transcript
from phloem.server.settings import load_settings

__all__ = ["run"]


def run(
    target: str,
    words: Sequence[str],
    pairs: Sequence[str],
    sampling: Mapping[str, Any],
    engine: Mapping[str, Any],
    show_trace: bool,
    quiet: bool,
) -> None:
    """Run the program `target` with the arguments `words` and `pairs` (see `arguments.py`).

    `engine` holds the settings of the backend (see `server/settings.py`).
    Raises `ConfigError` for wrong arguments before anything is loaded, and then whatever ends
    the run.
    """
    program = load_program(target)
    arguments = parse_arguments(program.function, program.parameters, words, pairs)
    load_backend(load_settings(**engine))
    console = Console(highlight=False, markup=False, emoji=False)
    transcript = None if quiet else Transcript(console)
    events = _watch(program.stream(**arguments, **sampling), transcript)
    value = next((event.value for event in events if isinstance(event, RunFinished)), None)
    if not quiet:
        console.print()
    console.out(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if show_trace:
        console.print()
        print_trace(events, console)


def _watch(stream: Iterable[Event], transcript: Transcript | None) -> list[Event]:
    """All events of a run, shown as they come. Raises what ended the run."""
    events = []
    try:
        for event in stream:
            events.append(event)
            if transcript is not None:
                transcript.show(event)
    finally:
        if transcript is not None:
            transcript.close()
    return events
