"""200 streams at once for a minute on a server process: none cut, none garbled, and the memory
comes back."""

from __future__ import annotations

import pytest

from benchmarks.server_load import run, started

STREAMS = 200
SECONDS = 60


@pytest.mark.slow
@pytest.mark.server
async def test_200_streams_for_a_minute() -> None:
    """All streams are whole and equal the text of a quiet server; after them the memory of server
    and engine is as before. How soon each began is for `benchmarks/server_load.py` to tell."""
    with started() as server:
        load = await run(server, STREAMS, SECONDS)
    assert load.streams >= STREAMS
    assert (load.cut, load.garbled) == (0, 0)
    assert len(load.first_bytes) == load.streams
    for process, before in load.memory_before.items():
        assert load.memory_after[process] < before * 1.1 + (50 << 20), process
    print(load.figures())
