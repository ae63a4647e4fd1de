"""Many event streams at once on a server process of its own: are all whole, and does it hold out?

    python benchmarks/server_load.py [--streams 200] [--seconds 60] [--json]

The model is the tiny one, so the server is what is loaded. Each stream is read to its end,
compared with the text that a quiet server gave, and followed by another. Times are from a request
to its first byte (the first event goes out once the engine has accepted the request) and to its
first text. The server process's CPU time per stream depends less than they do on what else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.server.http import serve
from phloem.server.settings import load_settings

TOKENS = 40
PROMPTS = 4
WARM_UP_S = 5.0


@dataclass(slots=True)
class Load:
    """What came of it. Times are seconds, memory is bytes by process, before and after."""

    streams: int = 0
    cut: int = 0
    garbled: int = 0
    first_bytes: list[float] = field(default_factory=list)
    first_texts: list[float] = field(default_factory=list)
    memory_before: dict[str, int] = field(default_factory=dict)
    memory_after: dict[str, int] = field(default_factory=dict)
    server_cpu_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """For printing."""
        return {
            "streams": self.streams,
            "cut": self.cut,
            "garbled": self.garbled,
            "first_byte_s": _spread(self.first_bytes),
            "first_text_s": _spread(self.first_texts),
            "server_cpu_ms_per_stream": round(1e3 * self.server_cpu_s / max(1, self.streams), 2),
            "memory_before_mb": {name: n >> 20 for name, n in self.memory_before.items()},
            "memory_after_mb": {name: n >> 20 for name, n in self.memory_after.items()},
        }


def _spread(values: list[float]) -> dict[str, float]:
    worst = max(values, default=0.0)
    return {"median": round(statistics.median(values or [0.0]), 3), "max": round(worst, 3)}


class Server:
    """A server process on the tiny model, which has an engine process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        # Two layers gain nothing from a second thread, which would spin on the core that server
        # and reader need.
        one = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)], env=one)

    def wait_ready(self) -> None:
        """Until it can work."""
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the server does not start")

    def cpu_s(self) -> float:
        """CPU seconds that the server process has used; its engine is another process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> dict[str, int]:
        """Own memory of both processes."""
        pid = self.process.pid
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = {c for task in tasks for c in (task / "children").read_text().split()}
        found = {"server": _own(pid), "engine": sum(_own(int(child)) for child in children)}
        assert children, "the engine has no process of its own"
        return found


def _own(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


@contextmanager
def started() -> Iterator[Server]:
    """A server that is ready, and ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(port)
    try:
        server.wait_ready()
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


async def _lines(port: int, number: int) -> AsyncIterator[bytes]:
    """The lines of one streamed reply, from the status line to the end of the connection."""
    body = json.dumps(
        {
            "model": "default", "stream": True, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True, "messages": [{"role": "user", "content": f"Number {number}"}],
        }
    )  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        while line := await reader.readline():
            yield line.rstrip(b"\r\n")
    finally:
        writer.close()


async def read(port: int, number: int, expected: str | None, load: Load) -> str:
    """One stream to its end; what became of it goes into `load`."""
    began = time.monotonic()
    text, whole = "", False
    status = b""
    try:
        async for line in _lines(port, number):
            if not status:
                status = line
                load.first_bytes.append(time.monotonic() - began)
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                if piece and not text:
                    load.first_texts.append(time.monotonic() - began)
                text += piece
            whole = whole or line == b"data: [DONE]"
    except (OSError, ValueError, KeyError):
        whole = False
    load.streams += 1
    load.cut += not (whole and status.startswith(b"HTTP/1.1 200"))
    load.garbled += expected is not None and text != expected
    return text


async def run(server: Server, streams: int, seconds: float) -> Load:
    """Keep `streams` streams open for so long, and let them end."""
    quiet = Load()
    expected = [await read(server.port, n, None, quiet) for n in range(PROMPTS)]
    assert not quiet.cut, "the quiet server does not work"

    async def one_after_the_other(number: int, until: float, load: Load) -> None:
        while time.monotonic() < until:
            await read(server.port, number % PROMPTS, expected[number % PROMPTS], load)

    async def all_at_once(seconds: float) -> Load:
        load, until = Load(), time.monotonic() + seconds
        await asyncio.gather(*(one_after_the_other(n, until, load) for n in range(streams)))
        return load

    await all_at_once(WARM_UP_S)
    before, cpu_before = server.memory(), server.cpu_s()
    load = await all_at_once(seconds)
    load.server_cpu_s = server.cpu_s() - cpu_before
    load.memory_before, load.memory_after = before, server.memory()
    return load


def _serve(port: int) -> None:
    settings = load_settings(port=port, log_level="warning")
    loader = Loader("phloem.runtime.model.tiny:tiny_model")
    serve.main(settings, lambda: HostedBackend(loader))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve)
        return
    # Ended from outside, it still ends the processes that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with started() as server:
        figures = asyncio.run(run(server, given.streams, given.seconds)).figures()
    print(json.dumps(figures) if given.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
