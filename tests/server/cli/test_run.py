"""`phloem run` shows a program's text as it comes, its value, and its trace."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from phloem.grammar.spec import Span
from phloem.programs.events import Retrieved, StepFinished
from phloem.programs.quoted import Quote
from phloem.programs.testing import ScriptedBackend
from phloem.server.cli.transcript import Transcript
from tests.server.cli.conftest import Command


def test_the_text_and_the_value_are_shown(
    phloem: Command, agent: Path, scripted: ScriptedBackend
) -> None:
    """Each step's name and text come first, the returned value as JSON last."""
    done = phloem("run", f"{agent}:answer", "--question", "Why?", "--times", "2")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:2] == ["answer: so it is", "answer: so it is"]
    assert json.loads(lines[-1]) == {"answer": "so it is", "times": 2}
    assert "Why?" in next(call.prompt for call in scripted.calls if call.kind == "generate")


def test_quiet_prints_the_value_alone(
    phloem: Command, agent: Path, scripted: ScriptedBackend
) -> None:
    """With --quiet the output is the returned value, ready for another program."""
    done = phloem("run", f"{agent}:answer", "--question", "Why?", "--quiet")
    assert json.loads(done.out) == {"answer": "so it is", "times": 1}


def test_the_trace_names_each_source_line(
    phloem: Command, agent: Path, scripted: ScriptedBackend
) -> None:
    """With --trace a table follows, with a row for each statement and the totals."""
    done = phloem("run", f"{agent}:answer", "--question", "Why?", "--trace")
    table = done.out.partition("agent.py")[2].splitlines()
    assert [line.split()[:3] for line in table if line.startswith(("append", "gen"))] == [
        ["append", "7"],
        ["gen", "answer", "9"],
    ]
    assert "total" in table[-1]


def test_sampling_options_reach_every_step(
    phloem: Command, agent: Path, scripted: ScriptedBackend
) -> None:
    """--temperature and --seed are the defaults of all steps of the run."""
    phloem("run", f"{agent}:answer", "--question", "q", "--temperature", "0", "--seed", "7")
    (call,) = [call for call in scripted.calls if call.kind == "generate"]
    assert call.params is not None
    assert (call.params.temperature, call.params.seed) == (0, 7)


def test_retrieved_titles_are_shown(
    phloem: Command, agent: Path, home: Path, scripted: ScriptedBackend
) -> None:
    """A retrieval shows the titles of what it found."""
    (home / "tea.md").write_text("# Tea\n\nTea is served at five.\n")
    assert phloem("index", "add", home / "tea.md", "--index", "notes").code == 0
    done = phloem("run", f"{agent}:lookup", "--question", "When is tea?")
    assert done.out.splitlines()[:2] == ["docs: Tea", "answer: so it is"]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["nix.py:f"], "there is no file nix.py", "FILE.py:FUNCTION"),
        (["agent.py:anser"], "agent.py holds no program 'anser'", "did you mean agent.py:answer?"),
        (["agent.py"], "agent.py holds 2 programs", "agent.py:answer, agent.py:lookup"),
        (["agent.py:answer"], "missing: question", "add --question VALUE"),
        (["agent.py:answer", "--quest", "x"], "no argument 'quest'", "did you mean --question?"),
        (
            ["agent.py:answer", "--question", "q", "--times", "x"],
            "--times: 'x' does not fit",
            "JSON",
        ),
        (["agent.py:lookup", "--question", "q"], "no index 'notes'", "phloem index add"),
        (
            ["agent.py:answer", "--question", "q", "--temperature", "-1"],
            "temperature=-1.0 is not a number from 0",
            "temperature",
        ),
    ],
)
def test_bad_input_is_one_message(
    phloem: Command,
    agent: Path,
    scripted: ScriptedBackend,
    words: list[str],
    message: str,
    hint: str,
) -> None:
    """What the user got wrong ends with code 2, one message, its remedy, and no traceback."""
    done = phloem("run", *words)
    assert done.code == 2
    assert message in done.err
    assert hint in done.err.partition("hint:")[2]
    assert done.err.count("error: ") == 1
    assert "Traceback" not in done.err


BAD_PROGRAMS = {
    "regex": ('ph.gen("x", regex="a[b")', "regex"),
    "schema": ('ph.gen("x", schema={"type": "strin"})', "strin"),
    "choices": ('ph.select("x", [])', "choice"),
}


@pytest.mark.parametrize("kind", BAD_PROGRAMS)
def test_a_bad_constraint_names_its_line(
    phloem: Command, home: Path, scripted: ScriptedBackend, kind: str
) -> None:
    """A bad regex, schema or choice list ends with code 2 and the program's line."""
    step, word = BAD_PROGRAMS[kind]
    code = f"import phloem as ph\n\n@ph.function\ndef bad(s):\n    s += {step}\n"
    (home / "bad.py").write_text(code)
    done = phloem("run", "bad.py")
    assert done.code == 2
    assert word in done.err
    assert "bad.py:5" in done.err
    assert "Traceback" not in done.err
    assert not [call for call in scripted.calls if call.kind == "generate"]


def test_an_unreadable_model_is_one_message(phloem: Command, agent: Path, home: Path) -> None:
    """A model file that is none ends with code 2 and says so."""
    (home / "model.gguf").write_bytes(b"no model")
    done = phloem("run", "agent.py:answer", "--question", "q", "--model", "model.gguf")
    assert done.code == 2
    assert "model.gguf" in done.err
    assert "hint:" in done.err
    assert "Traceback" not in done.err


def test_an_error_of_the_program_keeps_its_type_and_place(
    phloem: Command, home: Path, scripted: ScriptedBackend
) -> None:
    """An exception of the user's own code ends with code 1, its type, and the line."""
    (home / "mine.py").write_text(
        'import phloem as ph\n\n@ph.function\ndef mine(s):\n    s += "x"\n    {}["key"]\n'
    )
    done = phloem("run", "mine.py")
    assert done.code == 1
    assert "KeyError: 'key'" in done.err
    assert "mine.py:6" in done.err
    assert "Traceback" not in done.err


def test_debug_raises(agent: Path) -> None:
    """With --debug the error itself is raised, traceback and all."""
    from phloem.errors import ConfigError
    from phloem.server.cli import main

    with pytest.raises(ConfigError):
        main(["run", "nix.py", "--debug"])


def test_a_file_that_does_not_parse_is_named(phloem: Command, home: Path) -> None:
    """A syntax error in the user's file is one message with its line."""
    (home / "broken.py").write_text("def f(:\n")
    done = phloem("run", "broken.py")
    assert done.code == 2
    assert "broken.py is not valid Python" in done.err
    assert "line 1" in done.err


def test_an_error_of_a_files_own_statements_names_its_line(phloem: Command, home: Path) -> None:
    """What a file raises as it is imported, in a file it imports too, comes with file and line."""
    (home / "lacks_a_module.py").write_text("x = 1\n\nimport no_such_module\n")
    (home / "imports.py").write_text("import lacks_a_module\n")
    done = phloem("check", "imports.py")
    assert done.code == 1
    assert "No module named 'no_such_module'" in done.err
    assert "lacks_a_module.py:3" in done.err


def test_a_quotation_is_shown_in_its_passage(
    phloem: Command, home: Path, scripted: ScriptedBackend
) -> None:
    """A quotation is followed by its document, its offsets, and the passage with it marked."""
    (home / "notes.md").write_text("# Tea\n\nAs a rule it is said that so it is at five.\n")
    phloem("index", "add", home / "notes.md", "--index", "notes")
    (home / "cite.py").write_text(
        "import phloem as ph\n\n@ph.function\ndef cite(s, question):\n"
        '    docs = ph.retrieve("docs", question, index="notes")\n'
        '    s += ph.quote("evidence", docs)\n'
    )
    out = phloem("run", "cite.py:cite", "--question", "said rule").out
    assert "evidence: so it is\n" in out
    assert "from notes.md, characters 26 to 34: As a rule it is said that **so it is** at" in out


def test_a_quotation_has_colour_in_a_terminal() -> None:
    """Where the console has colours they mark the quotation instead of asterisks."""
    hit = {"id": "a", "text": "x" * 100 + " the words\nhere " + "y" * 100, "title": None}
    common = {"run": "r", "at": 0.0, "path": "", "node": None, "file": None, "line": None}
    told = Retrieved(
        **common, seq=0, name="docs", query="q", index="i", hits=(hit,), took_ms=1.0, partial=False
    )
    quote = Quote("words\nhere", (Span("a", 105, 115),))
    said = StepFinished(**common, seq=1, kind="gen", name="e", text=str(quote), value=quote)
    console = Console(
        file=StringIO(), color_system="standard", force_terminal=True, no_color=False, width=300
    )
    shown = Transcript(console)
    shown.show(told)
    shown.show(said)
    text = console.file.getvalue()
    assert "\x1b[1;30;43mwords here\x1b[0m" in text
    assert "**" not in text
    assert "…" in text
