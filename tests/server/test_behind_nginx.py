"""Behind nginx, which buffers by default: streams arrive in time all the same."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.harness import Running, serving, tiny

pytestmark = pytest.mark.slow

CONFIG = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; proxy_buffering on; proxy_read_timeout 5s;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass {upstream}; proxy_http_version 1.1; }}
  }}
}}
"""


@pytest.fixture
def server() -> Iterator[Running]:
    with serving(tiny(), max_running=1, heartbeat_s=2) as running:
        yield running


@pytest.fixture
def proxied(server: Running, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of nginx in front of the server."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if binary is None:
        pytest.skip("needs nginx: apt install nginx-light")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "nginx.conf"
    config.write_text(CONFIG.format(folder=tmp_path, port=port, upstream=server.url))
    nginx = subprocess.Popen([binary, "-c", str(config), "-e", str(tmp_path / "start.log")])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(100):
                try:
                    client.get("/health")
                    break
                except httpx.TransportError:
                    time.sleep(0.05)
            yield client
    finally:
        nginx.terminate()
        nginx.wait(10)


def test_pieces_arrive_one_by_one(server: Running, proxied: httpx.Client) -> None:
    """The pieces of a stream come apart, not in one burst at its end."""
    body = server.chat_body(max_tokens=1500, ignore_eos=True, stream=True)
    arrived = []
    with proxied.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if line.startswith("data:"):
                arrived.append(time.monotonic())  # noqa: PERF401 - the moment of each line
    middle = arrived[len(arrived) // 2]
    assert arrived[0] < middle < arrived[-1]
    # In one burst the second half would take no time against the whole.
    assert (arrived[-1] - middle) > 0.1 * (arrived[-1] - arrived[0])


def test_a_waiting_stream_outlives_the_idle_timeout(server: Running, proxied: httpx.Client) -> None:
    """A stream that waits longer than the proxy's 5 s is kept alive by comment lines."""
    slow = server.chat_body(max_tokens=4000, ignore_eos=True, logprobs=True, top_logprobs=20)
    with httpx.Client(base_url=server.url, timeout=120) as other:
        long = other.stream("POST", "/v1/chat/completions", json={**slow, "stream": True})
        with long as first:
            lines = first.iter_lines()
            next(lines)
            body = server.chat_body(max_tokens=3, stream=True)
            started = time.monotonic()
            with proxied.stream("POST", "/v1/chat/completions", json=body) as reply:
                beats = 0
                for line in reply.iter_lines():
                    beats += line.startswith(":")
                    if beats == 4:
                        break
            assert time.monotonic() - started > 5
