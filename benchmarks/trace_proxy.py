"""What the trace proxy costs: time to the first byte, and streams at once.

What lives here: a server that streams events at a model's pace, clients, and the comparison of
both with and without the proxy between them, all sinks on (JSONL, Elasticsearch, OTLP, stdout).
What does not: whether bytes stay the same (tests/server/trace).

Each part is a process of its own. Rounds with and without the proxy take turns, so that what else
the machine does falls on both alike. Usage:

    python benchmarks/trace_proxy.py [--streams 200] [--events 50] [--rate 20] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import re
import shutil
import socket
import statistics
import subprocess
import sysconfig
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

END = b'"stream":true}'
BODY = b'{"model":"m","messages":[{"role":"user","content":"%d"}],"stream":true}'
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"connection: close\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


class Answer(asyncio.Protocol):
    """Answers with `events` events, `rate` of them a second (0: all at once)."""

    def __init__(self, events: int, rate: float) -> None:
        self._left, self._rate = events, rate
        self._came = b""
        self._next: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Its request."""
        self._came += data
        if self._came.endswith(END):
            self._transport.write(HEAD)
            self._send()

    def _send(self) -> None:
        while self._left and not self._transport.is_closing():
            self._left -= 1
            self._transport.write(CHUNK)
            if self._rate:
                self._next = asyncio.get_running_loop().call_later(1 / self._rate, self._send)
                return
        self._transport.write(b"0\r\n\r\n")
        self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """It left."""
        if self._next is not None:
            self._next.cancel()


def upstream(port: int, events: int, rate: float) -> None:
    """A server of `Answer`s."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Answer(events, rate), "127.0.0.1", port, backlog=1024
        )
        await server.serve_forever()

    uvloop.run(main())


async def stream(port: int, number: int) -> tuple[float, int]:
    """Milliseconds to the first byte (connecting included), and bytes."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = BODY % number
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer sk-benchmark-0123456789\r\ncontent-length: %d\r\n\r\n%s"
        % (len(body), body)
    )
    first = await reader.read(1)
    took = 1000 * (time.perf_counter() - started)
    size = len(first)
    while data := await reader.read(65536):
        size += len(data)
    writer.close()
    return took, size


async def one_by_one(port: int, count: int) -> list[float]:
    """Times to the first byte of requests in a row; answers are not waited for."""
    found = []
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = BODY % number
        started = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        await reader.read(1)
        found.append(1000 * (time.perf_counter() - started))
        writer.close()
    return found


async def together(port: int, streams: int) -> tuple[float, list[float]]:
    """Bytes a second over `streams` streams at once, and their times to the first byte."""
    started = time.perf_counter()
    answers = await asyncio.gather(*(stream(port, number) for number in range(streams)))
    took = time.perf_counter() - started
    return sum(size for _, size in answers) / took, [first for first, _ in answers]


def client(pipe: Connection, port: int, streams: int, alone: int) -> None:
    """One round: what `one_by_one` and `together` give."""

    async def both() -> tuple[list[float], float, list[float]]:
        firsts = await one_by_one(port, alone)
        return (firsts, *await together(port, streams))

    pipe.send(uvloop.run(both()))


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def collector(port: int) -> None:
    """Takes spans and throws them away."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def wait_for(port: int) -> None:
    """Until something listens there."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def measure(port: int, streams: int, alone: int) -> tuple[list[float], float, list[float]]:
    """A round in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=client, args=(theirs, port, streams, alone))
    process.start()
    theirs.close()  # so that a client that dies is noticed
    found: tuple[list[float], float, list[float]] = ours.recv()
    process.join()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20.0, help="events a second and stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=100, help="requests one by one")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trace-proxy-"))
    context = multiprocessing.get_context("spawn")
    server, proxy, spans, search = (free_port() for _ in range(4))
    noida = Path(sysconfig.get_path("scripts")) / "noida-db"
    data = ["--data-dir", str(folder / "es")]
    started = [
        context.Process(target=upstream, args=(server, asked.events, asked.rate), daemon=True),
        context.Process(target=collector, args=(spans,), daemon=True),
    ]
    for process in started:
        process.start()
    up = [str(noida), "up", "--only", "elasticsearch", "--elasticsearch-port", str(search), *data]
    subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
    sinks = [f"jsonl:{folder / 'jsonl'}", f"es:http://127.0.0.1:{search}", "stdout"]
    sinks.append(f"otlp:http://127.0.0.1:{spans}/v1/traces")
    command = [str(Path(sysconfig.get_path("scripts")) / "phloem"), "trace-proxy"]
    command += ["--upstream", f"http://127.0.0.1:{server}", "--listen", f"127.0.0.1:{proxy}"]
    command += ["--spool", str(folder / "spool")]
    for sink in sinks:
        command += ["--to", sink]
    log = folder / "log"
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.open("wb"))
    try:
        wait_for(server)
        wait_for(proxy)
        time.sleep(3)  # the recorder's imports
        report(asked, server, proxy)
    finally:
        running.terminate()
        running.wait()
        down = [str(noida), "down", *data]
        subprocess.run(down, check=True, stdout=subprocess.DEVNULL)
        for process in started:
            process.terminate()
    text = log.read_text()
    kept = re.findall(
        r'"sink": "(\w+)[^"]*", "kept": (\d+), "dropped": (\d+), "failed": (\d+)', text
    )
    print("kept, dropped, failed:", ", ".join(f"{n} {k}/{d}/{f}" for n, k, d, f in kept))
    if "recorder_too_slow" in text:
        print("the recorder was too slow at times")
    shutil.rmtree(folder)


def report(asked: argparse.Namespace, server: int, proxy: int) -> None:
    """Rounds in turn, and medians."""
    alone: dict[str, list[float]] = {"direct": [], "proxy": []}
    speed: dict[str, list[float]] = {"direct": [], "proxy": []}
    loaded: dict[str, list[float]] = {"direct": [], "proxy": []}
    for _ in range(asked.rounds):
        for name, port in (("direct", server), ("proxy", proxy)):
            firsts, rate, together_firsts = measure(port, asked.streams, asked.alone)
            alone[name] += firsts
            speed[name].append(rate)
            loaded[name] += together_firsts
    print(f"{asked.streams} streams of {asked.events} events, {asked.rate:g} a second each")
    for what, found in (("alone", alone), ("all at once", loaded)):
        direct, through = (statistics.median(found[name]) for name in ("direct", "proxy"))
        print(
            f"first byte, {what}, p50: {direct:.2f} ms direct, {through:.2f} ms through the proxy: "
            f"{through - direct:+.2f} ms"
        )
    direct, through = (statistics.median(speed[name]) for name in ("direct", "proxy"))
    print(f"throughput: {direct / 1e6:.2f} MB/s direct, {through / 1e6:.2f} through: "
          f"{100 * through / direct:.1f}%")  # fmt: skip


if __name__ == "__main__":
    main()
