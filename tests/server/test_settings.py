"""Settings by option, environment and file; and `phloem serve` up to where it listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from phloem.errors import ConfigError
from phloem.server.cli import main
from phloem.server.http.keys import hash_key
from phloem.server.settings import load_settings


def test_the_nearer_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given values win over the environment, that over the file, that over the default."""
    file = tmp_path / "phloem.toml"
    file.write_text('host = "file"\nport = 1\nmax_running = 3\nprograms = ["a.py"]\n')
    monkeypatch.setenv("PHLOEM_PORT", "2")
    monkeypatch.setenv("PHLOEM_HOST", "environment")
    settings = load_settings(file, host="given", model=None)
    assert (settings.host, settings.port, settings.max_running) == ("given", 2, 3)
    assert settings.programs == ("a.py",)
    assert settings.max_queued == 1024
    monkeypatch.setenv("PHLOEM_CONFIG", str(file))
    monkeypatch.setenv("PHLOEM_PROGRAMS", "b.py,c.py:f")
    assert load_settings().programs == ("b.py", "c.py:f")
    assert load_settings().max_running == 3


def test_wrong_settings_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad value, an unknown name and a missing file are each a ConfigError that says so."""
    file = tmp_path / "phloem.toml"
    file.write_text("no_such_setting = 1\n")
    with pytest.raises(ConfigError, match="no_such_setting"):
        load_settings(file)
    monkeypatch.setenv("PHLOEM_PORT", "many")
    with pytest.raises(ConfigError, match="port"):
        load_settings()
    with pytest.raises(ConfigError, match="no settings file"):
        load_settings(tmp_path / "nowhere.toml")


def test_serve_makes_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """--hash-key prints the line for the file on one stream and the key itself on the other."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--hash-key", "alice"])
    assert ended.value.code in {0, None}
    said = capsys.readouterr()
    key = said.err.rpartition(" ")[2].strip()
    assert said.out.strip() == hash_key("alice", key)


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py"], "no file nowhere.py"),
        (["--api-key-file", "nowhere"], "key file"),
        (["--config", "nowhere.toml"], "no settings file"),
        (["--port", "99999"], "port"),
    ],
)
def test_serve_refuses_what_cannot_work(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong options end with code 2 and a message, before anything listens."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
