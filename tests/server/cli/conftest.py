"""What the tests of the command line share: a way to run it, and a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from phloem.programs import registry
from phloem.programs.testing import ScriptedBackend
from phloem.server.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def phloem(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process: `phloem("run", "file.py", ...)`."""

    def run(*words: str | Path) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with its own indexes; no search server is configured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHLOEM_INDEX_DIR", str(tmp_path / "indexes"))
    monkeypatch.delenv("PHLOEM_ES_URL", raising=False)
    registry.reset("retriever")
    return tmp_path


@pytest.fixture
def scripted() -> Iterator[ScriptedBackend]:
    """The default backend for one test: each step says "so it is"."""
    backend = ScriptedBackend(lambda _prompt, _params, _constraint: "so it is")
    registry.set_default("backend", backend)
    yield backend
    registry.reset("backend")


@pytest.fixture
def agent(home: Path) -> Path:
    """A file with two programs."""
    file = home / "agent.py"
    file.write_text(
        '''
import phloem as ph

@ph.function
def answer(s, question: str, times: int = 1):
    """Answer it."""
    s += ph.user(question)
    for _ in range(times):
        s += ph.assistant(ph.gen("answer", max_tokens=20))
    return {"answer": s["answer"], "times": times}

@ph.function
def lookup(s, question: str):
    docs = ph.retrieve("docs", question, index="notes", k=1)
    s += ph.user(ph.passages(docs))
    s += ph.assistant(ph.gen("answer", max_tokens=20))
    return s["answer"]
'''
    )
    return file
