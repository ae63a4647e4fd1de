"""The commands beside `run`: graphs, checks, indexes, models, the doctor."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.cli.conftest import Command


def test_graph_as_mermaid_and_as_json(phloem: Command, agent: Path) -> None:
    """A graph is printed as a Mermaid flowchart, or as JSON with its nodes and edges."""
    drawn = phloem("graph", f"{agent}:answer")
    assert drawn.out.startswith("flowchart")
    written = json.loads(phloem("graph", f"{agent}:answer", "--format", "json").out)
    assert {"gen", "append"} <= {node["kind"] for node in written["nodes"]}


def test_check_finds_errors_and_says_so_in_its_code(phloem: Command, home: Path) -> None:
    """A file with a bad regex ends with code 1 and a finding that names the line."""
    (home / "bad.py").write_text(
        'import phloem as ph\n\n@ph.function\ndef bad(s):\n    s += ph.gen("x", regex="a[b")\n'
    )
    done = phloem("check", "bad.py")
    assert done.code == 1
    assert re.search(r"bad\.py:5: error P001", done.out)
    github = phloem("check", "bad.py", "--format", "github")
    assert github.out.startswith("::error file=")


def test_check_of_a_good_file(phloem: Command, agent: Path) -> None:
    """A file without findings ends with code 0."""
    done = phloem("check", agent)
    assert (done.code, done.out) == (0, f"{agent}: 2 programs, 0 errors, 0 warnings\n")


def test_an_index_is_filled_searched_shown_and_deleted(phloem: Command, home: Path) -> None:
    """Documents go in once, are found, and are gone with their index."""
    notes = home / "notes"
    notes.mkdir()
    (notes / "tea.md").write_text("# Tea\n\nTea is served at five.\n")
    (notes / "cake.md").write_text("# Cake\n\nCake is served on Sundays.\n")
    assert "2 passages added" in phloem("index", "add", notes, "-i", "notes").out
    assert "0 passages added, 2 unchanged" in phloem("index", "add", notes, "-i", "notes").out
    assert phloem("index", "list").out.startswith("notes  2 documents")
    found = phloem("index", "search", "when is tea served?", "-i", "notes", "-k", "1").out
    assert "Tea is served at five." in found
    assert "Cake" not in found
    assert "2 documents" in phloem("index", "show", "notes").out
    assert phloem("index", "delete", "notes", "notes/tea.md").out == (
        "notes: 1 of 1 documents deleted\n"
    )
    assert phloem("index", "delete", "notes").code == 0
    assert phloem("index", "list").out == ""


def test_a_missing_index_and_a_missing_path_are_named(phloem: Command) -> None:
    """Searching an index that is not there, or adding no file, ends with code 2."""
    missing = phloem("index", "search", "tea", "-i", "nix")
    assert missing.code == 2
    assert "no index 'nix'" in missing.err
    nothing = phloem("index", "add", "nix.md")
    assert nothing.code == 2
    assert "nix.md" in nothing.err


def test_an_unknown_model_is_named(phloem: Command) -> None:
    """A name that no model has ends with code 2 and the names that are known."""
    done = phloem("model", "path", "nix")
    assert done.code == 2
    assert "smollm2-135m-instruct" in done.err


@pytest.mark.model
def test_the_model_is_listed_with_its_path(phloem: Command) -> None:
    """`model list` and `model path` agree on where the default model is."""
    path = phloem("model", "path").out.strip()
    assert Path(path).is_file()
    assert path in phloem("model", "list").out


def test_the_doctor_answers_and_names_what_is_wrong(
    phloem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor goes through everything, and a server that does not answer is a bad answer."""
    monkeypatch.setenv("PHLOEM_ES_URL", "http://127.0.0.1:9")
    done = phloem("doctor")
    assert done.code == 1
    assert re.search(r"^ok +torch", done.out, re.MULTILINE)
    assert re.search(r"^BAD +search .*127\.0\.0\.1:9", done.out, re.MULTILINE)


def test_help_is_light() -> None:
    """`phloem --help` imports no command's module and no heavy library."""
    code = (
        "import sys\nfrom phloem.server.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m in {'torch', 'pydantic', 'tantivy', 'numpy'}"
        " or m.startswith('phloem.server.cli.run')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_grammar_check_tells_good_from_bad(phloem: Command, home: Path) -> None:
    """A schema that can be enforced is said to be; a regex that can't is an error with code 2."""
    (home / "good.json").write_text('{"type": "integer"}')
    (home / "bad.txt").write_text("a[b\n")
    good = phloem("grammar", "check", "good.json")
    assert (good.code, good.out.splitlines()[0]) == (0, "good.json: json_schema, can be enforced")
    samples = good.out.split("samples:\n")[1].split()
    assert samples
    assert all(json.loads(sample) == int(sample) for sample in samples)
    bad = phloem("grammar", "check", "bad.txt")
    assert bad.code == 2
    assert "regex" in bad.err
    assert phloem("grammar", "check", "nix.json").code == 2
