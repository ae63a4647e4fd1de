"""What streaming over HTTP costs: 32 streams through a server, and the same work offline.

    python benchmarks/server_stream.py [--streams 32] [--tokens 128] [--rounds 3] [--tiny] [--json]

Two processes of their own take turns: one with the engine alone, one that is `phloem serve` (with
the engine in a child process). The client here does no more than read, so that its own work,
which shares the processors with both, stays small. `ratio` is the median of the rounds' ratios of
tokens per second; CPU seconds are given by process, of the streamed rounds.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.runtime.model.tiny import tiny_model
from phloem.server.http import serve
from phloem.server.settings import load_settings

TINY = "phloem.runtime.model.tiny:tiny_model"


def prompt(number: int) -> str:
    """The message of a stream: no two begin alike."""
    return f"Number {number}: tell a long story about a river."


# The two sides, each in a process of its own


def offline(tiny: bool) -> None:
    """One round for each line of standard input ("STREAMS TOKENS"); its seconds are printed."""
    backend = EmbeddedBackend(tiny_model()) if tiny else EmbeddedBackend()

    async def stream(number: int, tokens: int) -> int:
        session = await backend.open(f"s{number}")
        chat = backend.chat
        session.append(
            [*chat.prefix["user"], Text(prompt(number), heal=False), *chat.suffix["user"]]
        )
        session.append(chat.prefix["assistant"])
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        async for item in session.generate(params):
            if isinstance(item, StepResult):
                done = item.usage.generated
        await session.close()
        return done

    async def rounds() -> None:
        await backend.start()
        while line := await asyncio.to_thread(sys.stdin.readline):
            streams, tokens = map(int, line.split())
            await backend.flush_cache()
            began = time.perf_counter()
            done = await asyncio.gather(*(stream(n, tokens) for n in range(streams)))
            assert sum(done) == streams * tokens
            print(time.perf_counter() - began, flush=True)
        await backend.aclose()

    asyncio.run(rounds())


def online(port: int, tiny: bool) -> None:
    """A server until it is stopped."""
    settings = load_settings(port=port, log_level="warning")
    if tiny:
        serve.main(settings, lambda: HostedBackend(Loader(TINY)))
    else:
        serve.main(settings)


# The client


class Side:
    """A process of this script."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> str:
        """A line to it, and the line it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far of the process and of its engine's process."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children += [c for t in tasks for c in (t / "children").read_text().split()]
        found = {"server": seconds(pid)}
        found |= {"engine": sum(seconds(int(child)) for child in set(children))}
        return found


def seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def sides(tiny: bool) -> Iterator[tuple[Side, Side, int]]:
    """Both, and the server's port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    extra = ["--tiny"] if tiny else []
    both = Side("--offline", *extra), Side("--online", str(port), *extra)
    try:
        yield (*both, port)
    finally:
        for side in both:
            side.process.terminate()
            side.process.communicate()


async def read(port: int, number: int, tokens: int) -> int:
    """One stream to its end; how many events it had."""
    body = json.dumps(
        {
            "model": "default", "stream": True, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "messages": [{"role": "user", "content": prompt(number)}],
            "stream_options": {"include_usage": True},
        }
    )  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    got = bytearray()
    while part := await reader.read(1 << 16):
        got += part
    writer.close()
    assert b"data: [DONE]" in got, got[:500]
    assert f'"completion_tokens":{tokens},'.encode() in got, got[-500:]
    return got.count(b"data: {")


def wait_ready(port: int) -> None:
    """Until the server answers that it is ready."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server does not start")


def flush(port: int) -> None:
    """Forget what is cached."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/flush_cache", method="POST")
    urllib.request.urlopen(request, timeout=60).close()


def compare(streams: int, tokens: int, rounds: int, tiny: bool) -> dict[str, Any]:
    """All rounds of both sides, in turn."""
    total = streams * tokens
    rates: list[tuple[float, float]] = []
    events = 0

    async def all_streams(port: int) -> int:
        return sum(await asyncio.gather(*(read(port, n, tokens) for n in range(streams))))

    with sides(tiny) as (alone, server, port):
        wait_ready(port)
        alone.ask(f"{streams} 8")
        asyncio.run(read(port, 0, 8))
        before, mine = server.cpu(), time.process_time()
        for _ in range(rounds):
            offline_s = float(alone.ask(f"{streams} {tokens}"))
            flush(port)
            began = time.perf_counter()
            events = asyncio.run(all_streams(port))
            rates.append((total / offline_s, total / (time.perf_counter() - began)))
        after = server.cpu()
    return {
        "streams": streams,
        "tokens": tokens,
        "offline_tok_s": round(statistics.median(rate for rate, _ in rates), 1),
        "server_tok_s": round(statistics.median(rate for _, rate in rates), 1),
        "ratio": round(statistics.median(online / alone for alone, online in rates), 3),
        "events_per_token": round(events / total, 3),
        "cpu_us_per_token": {
            **{name: round(1e6 * (after[name] - before[name]) / total / rounds) for name in after},
            "client": round(1e6 * (time.process_time() - mine) / total / rounds),
        },
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--offline", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--online", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.offline:
        offline(given.tiny)
    elif given.online:
        online(given.online, given.tiny)
    else:
        # Ended from outside, it still ends the processes that it has started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        found = compare(given.streams, given.tokens, given.rounds, given.tiny)
        print(json.dumps(found) if given.json else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
