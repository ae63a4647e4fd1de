"""Two real SGLang servers, one of which is killed in the middle of a program."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import phloem as ph
from phloem.programs.events import Token
from phloem.programs.executor.loop import call
from phloem.runtime.sglang.backend import RuntimeEndpoint
from phloem.runtime.sglang.launch import Runtime
from tests.sglang_server import started, tokenizer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
STEPS = 4
TOKENS = 12


@ph.function
def talk(s):
    s += "The quick brown fox jumps over the lazy dog and runs far away into the deep forest. "
    for number in range(STEPS):
        s += f"\nAnd then, part {number}:"
        s += ph.gen(f"part{number}", max_tokens=TOKENS, temperature=0, ignore_eos=True)
    return [s[f"part{number}"] for number in range(STEPS)]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Runtime]]:
    """Two servers of our own. Skips where none can be started."""
    made = [started(), started()]
    try:
        for one in made:
            _ = one.capabilities
        yield made
    finally:
        for one in made:
            one.shutdown()


def kill(server: Runtime) -> None:
    """End a server at once, with everything that it has started: nothing is closed in order."""
    (child,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    os.killpg(int(child), signal.SIGKILL)


def test_a_program_outlives_its_server(servers: list[Runtime]) -> None:
    """Killed in the middle of the second step, the server is replaced by the other one: the
    program says what it says undisturbed, each token once."""
    urls = [server.urls[0] for server in servers]
    alone = RuntimeEndpoint(urls[1], tokenizer=tokenizer())
    undisturbed = talk.run(backend=alone)
    call(alone.aclose())

    backend = RuntimeEndpoint(urls, tokenizer=tokenizer())
    run = talk.stream(backend=backend)
    pieces: dict[str, list[Token]] = {}
    killed = None
    for event in run:
        if isinstance(event, Token):
            pieces.setdefault(event.name or "", []).append(event)
            if killed is None and len(pieces.get("part1", [])) == 3:
                (home,) = (s for s in backend._fleet.servers if s.running)
                killed = next(one for one in servers if one.urls[0] == home.http.url)
                kill(killed)
    assert killed is not None
    assert run.state.value == undisturbed.value
    for name, events in pieces.items():
        assert "".join(event.text for event in events) == run.state[name]
        assert sum(len(event.tokens) for event in events) == TOKENS
    assert list(backend.servers.values()).count(None) == 1
    call(backend.aclose())
