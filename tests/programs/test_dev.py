"""Editing a program: what is kept and what runs anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phloem.errors import ConfigError
from phloem.programs.dev import DevSession, load_program
from phloem.programs.testing import ScriptedBackend

SOURCE = """
import phloem as ph

@ph.function
def program(s, q):
    s += "Q: " + q
    s += "A: " + ph.gen("a")
    s += "B: " + ph.gen("b")
    s += "C: " + ph.gen("c")
    return s["c"]
"""


def session(tmp_path: Path, source: str = SOURCE) -> tuple[DevSession, Path, ScriptedBackend]:
    file = tmp_path / "program.py"
    file.write_text(source)
    backend = ScriptedBackend(lambda prompt, *_: f"<{len(prompt)}>")
    return DevSession(file, "program", {"q": "why"}, backend=backend), file, backend


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    # Edits within the clock's resolution must be seen too.
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**7))


def test_an_edit_runs_from_the_first_step_that_changed(tmp_path: Path) -> None:
    """Steps before the edit are kept with their values; the rest runs anew."""
    dev, file, backend = session(tmp_path)
    first = dev.run()
    assert (first.kept, first.anew, first.error) == (0, 3, None)
    edit(file, '"B: "', '"Bee: "')
    second = dev.run()
    assert (second.kept, second.anew) == (1, 2)
    assert second.changed == ("gen:b", 8)
    assert second.previous is not None
    assert second.state is not None
    assert second.state["a"] == first.state["a"]
    assert "Bee: " in second.state.text()
    assert backend.steps == 5


def test_no_change_keeps_everything(tmp_path: Path) -> None:
    """Saving without an edit asks the engine nothing."""
    dev, _, backend = session(tmp_path)
    dev.run()
    again = dev.run()
    assert (again.kept, again.anew, again.changed, again.recomputed) == (3, 0, None, 0)
    assert backend.steps == 3


def test_moved_lines_are_no_change(tmp_path: Path) -> None:
    """Comments and blank lines move nodes and change no step."""
    dev, file, _ = session(tmp_path)
    dev.run()
    edit(file, "@ph.function", "# a comment\n\n@ph.function")
    assert dev.run().anew == 0


def test_errors_are_reports(tmp_path: Path) -> None:
    """A syntax error or a failing program is shown, and the next edit goes on from before."""
    dev, file, _ = session(tmp_path)
    dev.run()
    edit(file, 'return s["c"]', "return (")
    assert isinstance(dev.run().error, SyntaxError)
    edit(file, "return (", 'raise ValueError("no")')
    failed = dev.run()
    assert (type(failed.error), failed.kept, failed.anew) == (ValueError, 3, 0)
    edit(file, 'raise ValueError("no")', 'return s["b"]')
    fixed = dev.run()
    assert (fixed.error, fixed.anew) == (None, 0)


def test_watch_reports_every_change(tmp_path: Path) -> None:
    """Watching gives a report at once and one for each change of the file."""
    dev, file, _ = session(tmp_path)
    reports = dev.watch(poll_s=0.001)
    assert next(reports).anew == 3
    edit(file, '"C: "', '"See: "')
    assert next(reports).anew == 1


def test_missing_files_and_names(tmp_path: Path) -> None:
    """A file or a name that is not there is one clear error that lists the programs."""
    _, file, _ = session(tmp_path)
    with pytest.raises(ConfigError, match="no file"):
        load_program(tmp_path / "nope.py", "program")
    with pytest.raises(ConfigError, match="it has: program"):
        load_program(file, "nope")
