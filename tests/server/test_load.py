"""200 streams at once for a minute: none cut, none garbled, and the memory comes back."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from pathlib import Path

import httpx
import pytest

from tests.server.harness import Running, serving, tiny

STREAMS = 200
SECONDS = 60


def resident_mb() -> float:
    """Memory of this process, which is the server's too."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def read(client: httpx.AsyncClient, server: Running, number: int, expected: str) -> float:
    """Read one stream, compare it, and give the seconds to its first event."""
    body = server.chat_body(
        max_tokens=40, stream=True, ignore_eos=True,
        messages=[{"role": "user", "content": f"Number {number % 4}"}],
    )  # fmt: skip
    started = time.monotonic()
    first = None
    pieces = []
    last = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line and first is None:
                first = time.monotonic() - started
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                pieces.append(choice["delta"].get("content", ""))
            last = line or last
    assert last == "data: [DONE]"
    assert "".join(pieces) == expected
    assert first is not None
    return first


@pytest.mark.slow
async def test_200_streams_for_a_minute() -> None:
    """All streams equal the text of a quiet server; after them memory is as before."""
    with serving(tiny(), max_running=STREAMS, early_headers_s=0.2) as server:
        expected = [
            server.chat(
                max_tokens=40, ignore_eos=True,
                messages=[{"role": "user", "content": f"Number {number}"}],
            ).json()["choices"][0]["message"]["content"]
            for number in range(4)
        ]  # fmt: skip
        limits = httpx.Limits(max_connections=STREAMS)
        firsts: list[float] = []

        async def worker(client: httpx.AsyncClient, number: int, until: float) -> None:
            while time.monotonic() < until:
                firsts.append(await read(client, server, number, expected[number % 4]))

        async def load(seconds: float) -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
                until = time.monotonic() + seconds
                await asyncio.gather(*(worker(client, n, until) for n in range(STREAMS)))

        await load(5)
        before = resident_mb()
        firsts.clear()
        await load(SECONDS)
        assert len(firsts) >= STREAMS
        server.wait_idle()
        assert resident_mb() < before * 1.1 + 50
        print(f"{len(firsts)} streams, first event at most {max(firsts):.2f} s")
