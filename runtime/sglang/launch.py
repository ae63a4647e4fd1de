"""An SGLang server that we start and stop.

What lives here: `Runtime`, a backend on a server of its own, and the process behind it. What does
not: talking to it (`backend.py`), and ending it when we die ourselves (`warden.py`).

The sglang package pins another torch, so it lives in an environment of its own and only its
interpreter is named here. Not an in-process `sglang.Engine`, for the same reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from phloem.errors import ConfigError, EngineError, Unsupported
from phloem.runtime.model.text import ModelText
from phloem.runtime.sglang import warden
from phloem.runtime.sglang.backend import RuntimeEndpoint

__all__ = ["Runtime", "command_line"]

_POLL_S = 0.25
_STOP_S = warden.GRACE_S + 5
_SHOWN_LINES = 20
_LINE = 300


class Runtime(RuntimeEndpoint):
    """A backend on an SGLang server of this machine's GPUs, started when first needed.

    `model_path` is what the server loads: a folder, or a name it can fetch. `python` is the
    interpreter of the environment that has sglang (default: PHLOEM_SGLANG_PYTHON). `tp` GPUs share
    the model, `mem_fraction_static` of their memory holds weights and KV; every other keyword is
    an argument of the server by its name (`dtype="bfloat16"` is `--dtype bfloat16`, True a bare
    flag, None nothing). `environment` adds variables. The server must answer within
    `start_timeout` seconds; its output goes to `log` (default: a temporary file), and the end of
    it into the error if it does not. It ends with `aclose`, `shutdown`, or this process.
    """

    def __init__(
        self,
        model_path: str,
        *,
        python: str | None = None,
        tp: int = 1,
        mem_fraction_static: float | None = None,
        port: int | None = None,
        tokenizer: str | Path | ModelText | None = None,
        timeout: float | None = 600.0,
        start_timeout: float = 600.0,
        log: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        port = port or _free_port()
        given = {
            "grammar_backend": "llguidance",
            "tp": tp if tp > 1 else None,
            "mem_fraction_static": mem_fraction_static,
        } | arguments
        self.command = command_line(_interpreter(python), model_path, port, given)
        self._environment = {**os.environ, **(environment or {})}
        self.log = Path(log) if log is not None else None
        """Where the server's output goes; known once it is started."""
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(
            f"http://127.0.0.1:{port}", tokenizer=tokenizer or model_path, timeout=timeout
        )

    @property
    def pid(self) -> int | None:
        """The process that holds the server; None before it is started."""
        return None if self._process is None else self._process.pid

    def _reach(self) -> None:
        """Start the server unless it runs, and wait until it answers."""
        if self._process is None:
            self.log = self.log or _temporary_log()
            self._process = _spawn(self.command, self._environment, self.log)
            weakref.finalize(self, _stop, self._process)
        until = time.monotonic() + self._start_timeout
        while not all(_answers(self.urls[0] + path) for path in ("/health", "/get_model_info")):
            if self._process.poll() is not None:
                raise self._failed(f"ended with status {self._process.returncode}")
            if time.monotonic() > until:
                self.shutdown()
                raise self._failed(f"did not answer within {self._start_timeout:g} s")
            time.sleep(_POLL_S)

    async def aclose(self) -> None:
        """See `Backend`. The server ends too."""
        await super().aclose()
        self.shutdown()

    def shutdown(self) -> None:
        """End the server and everything it started. Blocks; safe to call twice."""
        if self._process is not None:
            _stop(self._process)

    def _failed(self, what: str) -> EngineError:
        assert self.log is not None
        lines = self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        shown = "\n".join(line[:_LINE] for line in lines)
        return EngineError(
            f"the SGLang server {what}; the end of its output:\n{shown}",
            hint=f"the whole of it is in {self.log}; it was started as: " + " ".join(self.command),
        )


def command_line(python: str, model: str, port: int, arguments: Mapping[str, Any]) -> list[str]:
    """The server's command with `arguments` by their names. Raises `ConfigError` for a value that
    is no flag, number or text."""
    words = [python, "-m", "sglang.launch_server", "--model-path", model]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, str | int | float):
            words += [flag, str(value)]
        elif isinstance(value, Sequence) and all(isinstance(v, str | int | float) for v in value):
            words += [flag, *map(str, value)]
        else:
            raise ConfigError(
                f"{name}={value!r} is no server argument", hint="give text or a number"
            )
    return words


def _interpreter(python: str | None) -> str:
    named = python or os.environ.get("PHLOEM_SGLANG_PYTHON")
    if not named:
        raise ConfigError(
            "no interpreter with sglang is named",
            hint="make an environment with `pip install sglang` and give its python= "
            "(or set PHLOEM_SGLANG_PYTHON)",
        )
    if shutil.which(named) is None:
        raise ConfigError(f"there is no interpreter {named}", hint="give its path: ENV/bin/python")
    return named


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _temporary_log() -> Path:
    handle, name = tempfile.mkstemp(prefix="phloem-sglang-", suffix=".log")
    os.close(handle)
    return Path(name)


def _spawn(
    command: list[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    if os.name != "posix":
        raise Unsupported("servers are started on Linux and macOS only", hint="give a URL instead")
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", warden.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    if process.poll() is None:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            return client.get(url).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
