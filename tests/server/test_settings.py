"""Settings by option, environment and file; and `phloem serve` up to where it listens."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from phloem.errors import ConfigError
from phloem.programs import registry
from phloem.programs.protocol import Backend
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.engine.config import EngineConfig
from phloem.server.cli import main
from phloem.server.http import serve
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


def test_the_engine_is_set_in_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME=VALUE by option or environment and a table of the file give the engine's own config."""
    assert load_settings().engine == EngineConfig()
    file = tmp_path / "phloem.toml"
    file.write_text("[engine]\nkv_tokens = 4096\ninter_token_ms = 12.5\ndrafts = false\n")
    wanted = EngineConfig(kv_tokens=4096, inter_token_ms=12.5, drafts=False)
    assert load_settings(file).engine == wanted
    monkeypatch.setenv("PHLOEM_ENGINE", "kv_tokens=4096,inter_token_ms=12.5,drafts=false")
    assert load_settings().engine == wanted
    given = ("max_running=8", "eviction=lru")
    assert load_settings(file, engine=given).engine == EngineConfig(max_running=8, eviction="lru")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"engine": "max_runing=3"}, "there is no 'max_runing'; there are kv_tokens, "),
        ({"engine": "max_running=0"}, "max_running is 0; it must be 1 or more"),
        ({"engine": "max_running"}, "engine.max_running: .* integer"),
        ({"engine": "eviction=random"}, "engine.eviction: .*'program' or 'lru'"),
        ({"engine": "max_running=4", "sglang_url": "http://x"}, "go into sglang_args"),
        ({"dtype": "float16"}, "dtype: .*'bfloat16'"),
        ({"device": "gpu"}, "device: "),
    ],
)
def test_wrong_engine_settings_are_refused(given: dict[str, str], says: str) -> None:
    """Each is a ConfigError that names the setting and what it may be."""
    with pytest.raises(ConfigError, match=says):
        load_settings(**given)


def test_the_engine_that_is_served_has_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dtype, device and each setting of the engine reach the backend, in a process or without."""
    made: list[dict[str, object]] = []

    def backend(model: str, *, limits: object = None, **settings: object) -> Backend:
        made.append(settings)
        return ScriptedBackend([])

    monkeypatch.setattr(serve, "HostedBackend", backend)
    monkeypatch.setattr("phloem.runtime.embedded.EmbeddedBackend", backend)
    monkeypatch.setattr(registry, "_makers", {})
    # A program's own engine gives way to what the operator asks for.
    monkeypatch.setattr(registry, "_made", {"backend": ScriptedBackend([])})
    for process in (True, False):
        settings = load_settings(engine="max_running=7", dtype="int8", engine_process=process)
        serve._backend(settings)
    config = dataclasses.asdict(EngineConfig(max_running=7))
    assert made == [{"dtype": "int8", "device": "auto", **config}] * 2


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
