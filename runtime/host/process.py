"""One engine process, seen from its parent.

What lives here: `EngineProcess`: starting it, talking to it, ending it, its memory. What does not:
when to do so (`supervisor.py`), and the process itself (`child.py`).

It is a fresh interpreter, never a fork: threads and CUDA do not survive one. It imports from the
same places as this process. What it prints (the trace of a hard crash) goes to this process's log.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from phloem.runtime.host import wire
from phloem.runtime.host.channel import Channel

__all__ = ["EngineProcess"]

log = logging.getLogger(__name__)

_END_S = 2.0
"""How long a process that has hung up may take to end."""


class EngineProcess:
    """Started when made. `on_message` and, once, `on_end` are called on a thread of its own."""

    def __init__(
        self,
        load: wire.Load,
        on_message: Callable[[wire.FromChild], None],
        on_end: Callable[[], None],
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "phloem.runtime.host.child", str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        self.started = self.answered = time.monotonic()
        """When it was started, and when it last answered a ping."""
        self._on_message, self._on_end = on_message, on_end
        self._channel: Channel[bytes] = Channel(ours, wire.frame_to_child)
        self._threads = [
            threading.Thread(target=work, name=f"phloem-host-{name}", daemon=True)
            for name, work in (("read", self._read), ("print", self._print))
        ]
        for thread in self._threads:
            thread.start()
        self.send(wire.encode_to_child(load))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Send an encoded message soon."""
        self._channel.put(message)

    def memory(self) -> int | None:
        """Bytes that are its own: without mapped files, as weights are. None: not known here."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return None
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        kinds = [fields.get(name, "0 kB").split()[0] for name in ("RssAnon", "RssShmem")]
        return sum(map(int, kinds)) * 1024

    def kill(self) -> None:
        """End it now, whatever it is doing."""
        self._process.kill()

    def stop(self, timeout: float) -> None:
        """Let it end its jobs and itself; after `timeout` seconds it is killed."""
        self.send(wire.encode_to_child(wire.Stop()))
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            log.warning("the engine process did not stop in %g s and is killed", timeout)
            self.kill()
        self.reap()

    def reap(self) -> str:
        """When it has hung up: let go of all that belonged to it. Says how it ended."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        self._channel.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1)
        if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with status {code}"

    def _read(self) -> None:
        try:
            for frame in self._channel.frames():
                for message in wire.decode_from_child(frame):
                    if isinstance(message, wire.Pong):
                        self.answered = time.monotonic()
                    self._on_message(message)
        except Exception:
            # What it sends makes no sense: it can't be trusted with anything more.
            log.exception("a message of the engine process can't be read")
            self.kill()
        self._on_end()

    def _print(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                log.warning("engine process: %s", line.decode("utf-8", "replace").rstrip())
