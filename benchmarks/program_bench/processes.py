"""Servers and workers: started once, stopped while another engine has its turn.

What lives here: `Pool`, `Worker` and the meter of what others use the machine for. What does not:
what is asked of workers (`session.py`).

Only the engine whose turn it is runs: all others' processes are suspended (SIGSTOP), so that they
take no CPU, and need not load their model again when it is their turn. They keep their memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Container, Mapping
from pathlib import Path
from typing import IO, Any

from .engines import CORES, Engine, Places, Server

__all__ = ["Meter", "Pool", "StartFailure", "TooSlow", "cpu_seconds"]

STOP_S = 10.0
FLUSH_TRIES = 10
WORKER_START_S = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")
_COMMON = {"OMP_NUM_THREADS": str(CORES), "HF_HUB_OFFLINE": "1"}


class StartFailure(Exception):
    """A server or worker did not come up; says why."""


class TooSlow(Exception):
    """A cell took more than its hard limit."""


class Process:
    """A process with all its children, in a session of its own; `pipes` to talk with it."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, *, pipes: bool
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env={**_own_environment(command[0]), **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Also the id of its session and process group."""
        return self.popen.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self) -> None:
        """End them, by force after a while."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            self.signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(STOP_S)
        self.signal(signal.SIGKILL)
        self.popen.wait(STOP_S)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-600:]


def _own_environment(interpreter: str) -> dict[str, str]:
    """This process's environment, without what belongs to this interpreter for another one."""
    ours = () if interpreter == sys.executable else ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours}


class Worker(Process):
    """A worker: lines of JSON both ways."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(command, environment, log, pipes=True)
        try:
            self.info: dict[str, Any] = self._read(WORKER_START_S)
        except BaseException:
            self.stop()
            raise

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Its answer. Raises `TooSlow`, after which it must be stopped."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(request).encode() + b"\n")
        self.popen.stdin.flush()
        return self._read(limit_s)

    def _read(self, limit_s: float) -> dict[str, Any]:
        pipe: IO[bytes] | None = self.popen.stdout
        assert pipe is not None
        # The worker writes whole lines, one for each request, so nothing hides in a buffer.
        ready, _, _ = select.select([pipe], [], [], limit_s)
        if not ready:
            raise TooSlow(f"no answer in {limit_s:.0f} s")
        line = pipe.readline()
        if not line:
            raise StartFailure(f"the worker ended: {self.last_words()}")
        found: dict[str, Any] = json.loads(line)
        return found


class Pool:
    """All processes of a benchmark. Use as a context: it leaves none behind."""

    def __init__(self, places: Places, logs: Path) -> None:
        self._places = places
        self._logs = logs
        self._servers: dict[str, tuple[Process, str]] = {}
        self._workers: dict[str, Worker] = {}
        self._engines: dict[str, Engine] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for process in (*self._workers.values(), *(p for p, _ in self._servers.values())):
            process.stop()

    def turn(self, engine: Engine) -> Worker:
        """Suspend all others, and have this one's worker and server running.

        Raises `StartFailure`.
        """
        for name, worker in self._workers.items():
            worker.signal(signal.SIGCONT if name == engine.name else signal.SIGSTOP)
        for name, (process, _) in self._servers.items():
            mine = engine.server is not None and name == engine.server.name
            process.signal(signal.SIGCONT if mine else signal.SIGSTOP)
        if engine.name not in self._workers:
            url = self._url(engine.server) if engine.server is not None else ""
            self._workers[engine.name] = self._start(engine, url)
            self._engines[engine.name] = engine
        return self._workers[engine.name]

    def flush(self, engine: Engine) -> None:
        """Empty the cache of an engine's server, once that has nothing to do any more."""
        if engine.server is None or not engine.server.flush:
            return
        url = self._servers[engine.server.name][1] + engine.server.flush
        request = urllib.request.Request(url, method="POST")
        for left in reversed(range(FLUSH_TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=60):
                    return
            except urllib.error.HTTPError as error:
                if not left:
                    raise StartFailure(f"{url} answered {error.code}") from error
                time.sleep(1.0)

    def running(self, engine: Engine) -> list[int]:
        """The sessions of an engine's processes, for the meter."""
        found = [self._workers[engine.name].pid] if engine.name in self._workers else []
        if engine.server is not None and engine.server.name in self._servers:
            found.append(self._servers[engine.server.name][0].pid)
        return found

    def server_log(self, engine: Engine) -> Path:
        """What an engine's running server writes."""
        assert engine.server is not None
        return self._servers[engine.server.name][0].log

    def drop(self, engine: Engine) -> None:
        """Stop an engine that hangs; its server too, which may be busy with what it asked."""
        worker = self._workers.pop(engine.name, None)
        if worker is not None:
            worker.stop()
        if engine.server is not None and engine.server.name in self._servers:
            process, _ = self._servers.pop(engine.server.name)
            process.stop()
            # Other workers of that server have its address.
            for other in [e for e in self._engines.values() if e.server == engine.server]:
                if other.name in self._workers:
                    self._workers.pop(other.name).stop()

    def _start(self, engine: Engine, url: str) -> Worker:
        command = engine.worker(self._places, url)
        try:
            return Worker(command, _COMMON, self._logs / f"{engine.name}.log")
        except TooSlow as error:
            raise StartFailure(f"the worker of {engine.name} did not start: {error}") from error

    def _url(self, server: Server) -> str:
        if server.name in self._servers:
            return self._servers[server.name][1]
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        environment = {**_COMMON, **server.environment(self._places)}
        command = server.command(self._places, port)
        log = self._logs / f"server-{server.name}.log"
        process = Process(command, environment, log, pipes=False)
        try:
            _await_health(process, url + server.health, server.start_s)
        except BaseException:
            process.stop()
            raise
        self._servers[server.name] = (process, url)
        return url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_health(process: Process, url: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.popen.poll() is not None:
            raise StartFailure(f"the server ended: {process.last_words()}")
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(url, timeout=30) as response,
        ):
            if response.status == 200:
                return
        time.sleep(0.5)
    raise StartFailure(f"the server did not answer {url} in {limit_s:.0f} s")


class Meter:
    """Cores that others used since it was made: whether a measurement was disturbed."""

    def __init__(self, sessions: list[int]) -> None:
        self._sessions = {os.getsid(0), *sessions}
        self._start = self._now()

    def others(self) -> float | None:
        """Mean cores in use outside of the benchmark; None where /proc does not say."""
        if self._start is None or (now := self._now()) is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, (busy - own) / max(wall, 1e-3))

    def _now(self) -> tuple[float, float, float] | None:
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        busy = sum(map(int, fields)) - int(fields[3]) - int(fields[4])
        return time.monotonic(), busy / _TICKS, cpu_seconds(self._sessions)


def cpu_seconds(sessions: Container[int]) -> float:
    """What all processes of these sessions that still run have used so far."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) in sessions:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS
