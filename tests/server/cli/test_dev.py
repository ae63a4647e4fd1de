"""`phloem dev`: what is shown after an edit."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phloem.programs.dev import DevSession
from phloem.programs.testing import ScriptedBackend
from phloem.server.cli.dev import show_report
from tests.server.cli.conftest import Command

PROGRAM = """import phloem as ph

@ph.function
def two(s, q: str):
    s += ph.user(q)
    s += ph.assistant(ph.gen("first"))
    s += ph.user("{second}")
    s += ph.assistant(ph.gen("last"))
"""


def test_dev_runs_once_and_shows_the_variables(
    phloem: Command, scripted: ScriptedBackend, home: Path
) -> None:
    """`--once` prints each variable and how many steps were done."""
    (home / "two.py").write_text(PROGRAM.format(second="and?"))
    done = phloem("dev", "two.py:two", "--q", "well", "--once")
    assert done.code == 0
    assert "so it is" in done.out
    assert "0 steps kept, 2 anew" in done.out


def test_after_an_edit_the_steps_before_it_are_kept(scripted: ScriptedBackend, home: Path) -> None:
    """An edit of the second prompt keeps the first step, and names the line it starts from."""
    file = home / "two.py"
    file.write_text(PROGRAM.format(second="and?"))
    session = DevSession(file, "two", {"q": "well"})
    console = Console(width=120, record=True)
    show_report(session.run(), console)
    file.write_text(PROGRAM.format(second="but?"))
    show_report(session.run(), console)
    assert "1 steps kept, 1 anew from line 8" in console.export_text()
