"""Servers that we start ourselves: they answer, they fail loudly, and they never outlive us.

The module `sglang.launch_server` of these tests starts phloem's own server over the tiny model, or
fails as told; the real one runs in the tests marked `sglang`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phloem as ph
from phloem.errors import ConfigError, EngineError
from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.launch import command_line

SERVER = """
import subprocess, sys
from pathlib import Path
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.server.http.serve import main
from phloem.server.settings import load_settings

sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(__file__).with_name("pids").write_text(f"{sleeper.pid}")
port = int(sys.argv[sys.argv.index("--port") + 1])
main(load_settings(port=port), lambda: EmbeddedBackend(tiny_model()))
"""
FAILS = "import sys; print('no GPU here', file=sys.stderr); sys.exit(3)"
HANGS = "import time; print('loading for ever', flush=True); time.sleep(600)"


def runtime(folder: Path, source: str, **options) -> ph.Runtime:
    """A runtime whose sglang.launch_server is `source`."""
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(source)
    return ph.Runtime(
        "tiny", python=sys.executable, tokenizer=tiny_model(), log=folder / "log",
        environment={"PYTHONPATH": str(folder)}, **options,
    )  # fmt: skip


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int, seconds: float = 30) -> bool:
    """Whether the process ends in time."""
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


def test_arguments_become_the_servers_own() -> None:
    """Names turn into flags, True into a bare one, None into nothing, lists into several words."""
    words = command_line(
        "python", "model", 1, {"tp": 2, "enable_x": True, "y": None, "z": ["a", 1]}
    )
    assert words[words.index("1") + 1 :] == ["--tp", "2", "--enable-x", "--z", "a", "1"]
    with pytest.raises(ConfigError, match="bad"):
        command_line("python", "model", 1, {"bad": {}})


def test_the_interpreter_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python= and PHLOEM_SGLANG_PYTHON, or with a wrong one, nothing is started."""
    monkeypatch.delenv("PHLOEM_SGLANG_PYTHON", raising=False)
    with pytest.raises(ConfigError, match="sglang"):
        ph.Runtime("model")
    with pytest.raises(ConfigError, match="/no/python"):
        ph.Runtime("model", python="/no/python")


def test_a_server_that_fails_shows_its_output(tmp_path: Path) -> None:
    """The error holds the status and the end of the log."""
    made = runtime(tmp_path, FAILS)
    with pytest.raises(EngineError, match=r"status 3(.|\n)*no GPU here"):
        _ = made.capabilities


def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    """After start_timeout the error shows what it said, and its process is gone."""
    made = runtime(tmp_path, HANGS, start_timeout=1.0)
    with pytest.raises(EngineError, match=r"did not answer"):
        _ = made.capabilities
    assert made.pid is not None
    assert gone(made.pid)


async def test_a_server_of_our_own_answers_and_ends(tmp_path: Path) -> None:
    """It is started by the first need of it, runs steps, and ends with all it has started."""
    made = runtime(tmp_path, SERVER)
    assert made.pid is None
    session = await made.open("s")
    session.append([Text("Hello")])
    *_, result = [item async for item in session.generate(SamplingParams(max_tokens=4))]
    assert isinstance(result, StepResult)
    child = int((tmp_path / "sglang" / "pids").read_text())
    assert alive(child)
    await made.aclose()
    assert made.pid is not None
    assert gone(made.pid)
    assert gone(child)


@pytest.mark.slow
def test_a_server_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """When our process is killed outright its server ends too."""
    runtime(tmp_path, SERVER)
    source = f"""
import phloem as ph, sys, time
from phloem.runtime.model.tiny import tiny_model
runtime = ph.Runtime("tiny", python=sys.executable, tokenizer=tiny_model(),
                     log={str(tmp_path / "log")!r}, environment={{"PYTHONPATH": {str(tmp_path)!r}}})
runtime.capabilities
print(runtime.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    child = int((tmp_path / "sglang" / "pids").read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(pid)
    assert gone(child)
