"""A real server on a loopback port for tests, and ways to look into it.

What lives here: starting and stopping it in this process, clients, and reading its metrics.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from phloem.grammar.analyser import default_analyser
from phloem.programs.api.function import Program
from phloem.programs.protocol import Backend
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.server.http.engine import Engine
from phloem.server.http.serve import uvicorn_server
from phloem.server.http.state import ServerState, make_state
from phloem.server.programs.catalog import Catalog
from phloem.server.settings import load_settings


def tiny(context: int = 4096) -> Backend:
    """An engine on the tiny model with random weights."""
    return EmbeddedBackend(tiny_model(max_positions=context))


def chunks(text: str) -> list[dict[str, Any]]:
    """The data events of a stream, which must end with [DONE] and hold nothing else."""
    events = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event[6:]) for event in events[:-1]]


@dataclass(slots=True)
class Running:
    """A server that runs: its address, its state, a client, its model's name."""

    url: str
    state: ServerState
    client: httpx.Client
    model: str

    def chat(self, **body: Any) -> httpx.Response:
        """POST /v1/chat/completions; greedy and short unless told otherwise."""
        return self.client.post("/v1/chat/completions", json=self.chat_body(**body))

    def chat_body(self, **body: Any) -> dict[str, Any]:
        """A chat request with defaults for what `body` leaves out."""
        default: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Name a colour."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        return {name: value for name, value in (default | body).items() if value is not ...}

    def run(self, program: str, **body: Any) -> httpx.Response:
        """POST /v1/programs/{program}/runs."""
        return self.client.post(f"/v1/programs/{program}/runs", json=body)

    def settled(self, run: str, seconds: float = 20) -> dict[str, Any]:
        """The run once it is over."""
        until = time.monotonic() + seconds
        while True:
            found: dict[str, Any] = self.client.get(f"/v1/runs/{run}").json()
            if found["status"] not in {"queued", "running"}:
                return found
            assert time.monotonic() < until, f"run {run} is still {found['status']}"
            time.sleep(0.02)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a series now."""
        text = self.client.get("/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        raise AssertionError(f"no series {name} {labels}")

    def wait_idle(self, seconds: float = 10) -> None:
        """Wait until no request runs or waits."""
        until = time.monotonic() + seconds
        while self.state.gate.running or self.state.gate.queued:
            assert time.monotonic() < until, "requests are still running"
            time.sleep(0.01)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for raw sockets."""
        return ("127.0.0.1", int(self.url.rpartition(":")[2]))


@contextmanager
def serving(
    backend: Backend,
    programs: Sequence[Program] = (),
    *,
    wrap: Callable[[ASGIApp], ASGIApp] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server on `backend` with these programs and settings; `wrap` may stand in between."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        state = make_state(
            load_settings(port=port, **settings), Engine(lambda: backend), default_analyser()
        )
        server = uvicorn_server(state, Catalog(programs))
        if wrap is not None:
            server.config.app = wrap(server.config.app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=60) as client:
                while client.get("/ready").status_code != 200:
                    time.sleep(0.01)
                yield Running(url, state, client, backend.capabilities.model)
        finally:
            server.should_exit = True
            thread.join()
