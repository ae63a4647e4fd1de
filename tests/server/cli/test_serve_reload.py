"""`phloem serve --reload`: a program that is saved is served."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

PATIENCE_S = 180

PROGRAM = '''
import phloem as ph

@ph.function
def {name}(s, question: str):
    """{doc}"""
    s += question + ph.gen("answer", max_tokens=3)
    return s["answer"]
'''


@pytest.mark.slow
@pytest.mark.model
def test_a_saved_program_is_served(home: Path) -> None:
    """After an edit the server starts again with the new program, and answers runs of it."""
    file = home / "agent.py"
    file.write_text(PROGRAM.format(name="old", doc="Before."))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", str(file), "--reload", "--port", str(port)]
    code = f"from phloem.server.cli import main; main({words!r})"
    environment = {**os.environ, "PHLOEM_JOURNAL": str(home / "runs.db")}
    serving = subprocess.Popen(
        [sys.executable, "-c", code], cwd=home, env=environment, start_new_session=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            _wait(client, "old")
            file.write_text(PROGRAM.format(name="new", doc="After."))
            _wait(client, "new")
            until = time.monotonic() + PATIENCE_S
            while client.get("/ready").status_code != 200 and time.monotonic() < until:
                time.sleep(0.2)
            reply = client.post("/v1/programs/new/runs", json={"args": {"question": "x"}})
            assert reply.status_code == 200
            assert client.post("/v1/programs/old/runs", json={"args": {}}).status_code == 404
    finally:
        os.killpg(serving.pid, signal.SIGTERM)
        serving.wait(30)


def _wait(client: httpx.Client, name: str) -> None:
    """Until the server offers the program `name`, and no other."""
    until = time.monotonic() + PATIENCE_S
    found: set[str] = set()
    while found != {name}:
        assert time.monotonic() < until, found
        time.sleep(0.2)
        try:
            found = {one["name"] for one in client.get("/v1/programs").json()["data"]}
        except httpx.TransportError:
            found = set()
