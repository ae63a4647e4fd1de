"""The code in README.md and docs/ runs.

The Python blocks of a page are one program, run in order from the repository's root; `$ phloem`
and `$ python` lines of console blocks are run as commands. Blocks in other languages are not
run. Each page runs with its own empty index folder, and with the machine's model.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in `language`."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [code for named, code in found if named == language]


def commands(page: Path) -> list[list[str]]:
    """The commands of a page's console blocks that start one of our programs."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    typed = [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]
    return [words for words in typed if words[0] in ("phloem", "python")]


def run(words: list[str], data: Path) -> str:
    """Run a command from the root with its own data folder; returns what it printed."""
    words = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PHLOEM_INDEX_DIR": str(data)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_fences_are_closed_and_named() -> None:
    """Every code block of every page names its language."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "" not in [language for language, _ in FENCE.findall(text)], page
        assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), page


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is built, the reference from the docstrings, and no link leads nowhere."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    reference = (tmp_path / "reference/programs/index.html").read_text(encoding="utf-8")
    assert 'id="phloem.programs.api.primitives.gen"' in reference


@pytest.mark.model
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """The commands that a page shows end well, one after the other."""
    for words in commands(page):
        run(words, tmp_path)


@pytest.mark.model
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda p: p.name
)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page run as one program."""
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks(page, "python")), encoding="utf-8")
    data = tmp_path / "data"
    run(["phloem", "index", "add", "examples/handbook", "--index", "handbook"], data)
    run(["python", str(program)], data)
