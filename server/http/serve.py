"""Running the server: from settings to a process that answers, and back to a clean stop.

What lives here: `main`, which `phloem serve` calls, and the making of the parts it needs. What
does not: the application (`app.py`).

On SIGTERM or SIGINT the server stops taking requests, lets running ones finish for at most
`shutdown_s`, then cancels what is left; background runs stay in the journal and go on at the
next start. A second signal ends it at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import time
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from phloem.grammar.analyser import default_analyser
from phloem.programs import registry
from phloem.programs.protocol import Backend
from phloem.retrieval.base import Retriever
from phloem.retrieval.defaults import default_retriever
from phloem.runtime.host.backend import HostedBackend
from phloem.runtime.host.supervisor import Limits
from phloem.runtime.model.store import DEFAULT_MODEL
from phloem.server.http.app import create_app
from phloem.server.http.engine import Engine
from phloem.server.http.logs import configure_logs
from phloem.server.http.state import ServerState, make_state
from phloem.server.journal.store import Store
from phloem.server.programs.catalog import Catalog, load_catalog
from phloem.server.programs.manager import RunManager
from phloem.server.programs.rows import Runs
from phloem.server.remote import sglang_backend
from phloem.server.settings import Settings, load_settings

__all__ = ["application", "main", "uvicorn_server"]

log = structlog.get_logger("phloem.server")

SAME_SIGNAL_S = 0.5
"""Signals closer than this are one."""


def main(settings: Settings, make_backend: Callable[[], Backend] | None = None) -> None:
    """Serve until a stop signal. `make_backend` loads the engine (default: by the settings).

    Raises `ConfigError` for settings and programs that can't work, before anything listens.
    """
    configure_logs(settings)
    uvicorn_server(*_parts(settings, make_backend)).run()


def application() -> FastAPI:
    """The application by the environment's settings alone, for servers that want a factory."""
    settings = load_settings()
    configure_logs(settings)
    return _create(*_parts(settings, None))


def _parts(
    settings: Settings, make_backend: Callable[[], Backend] | None
) -> tuple[ServerState, Catalog]:
    catalog = load_catalog(settings.programs)
    engine = Engine(make_backend or (lambda: _backend(settings)))
    searched = bool(list(catalog)) or settings.es_url is not None
    retriever = _retriever(settings) if searched else None
    return make_state(settings, engine, default_analyser(), retriever), catalog


def _backend(settings: Settings) -> Backend:
    """The engine of the settings; if they say nothing of it, a part that a program has set wins."""

    def make() -> Backend:
        if settings.remote:
            return sglang_backend(settings)
        model = settings.model or DEFAULT_MODEL
        own = {"dtype": settings.dtype, "device": settings.device}
        own |= dataclasses.asdict(settings.engine)
        if settings.engine_process:
            limits = Limits(settings.engine_memory_bytes, stuck_s=settings.engine_stuck_s)
            return HostedBackend(model, limits=limits, **own)
        # torch is loaded with the model, not before the server answers probes.
        embedded = importlib.import_module("phloem.runtime.embedded")
        made: Backend = embedded.EmbeddedBackend(model, **own)
        return made

    registry.register("backend", make)
    if settings.model is not None or settings.remote or settings.sets_engine:
        registry.reset("backend")
    backend: Backend = registry.default("backend")
    return backend


def _retriever(settings: Settings) -> Retriever:
    environment = dict(os.environ)
    if settings.es_url is not None:
        environment["PHLOEM_ES_URL"] = settings.es_url.get_secret_value()
    if settings.index_dir is not None:
        environment["PHLOEM_INDEX_DIR"] = str(settings.index_dir)
    return default_retriever(environment)


def _create(state: ServerState, catalog: Catalog) -> FastAPI:
    settings = state.settings
    store = Store(settings.journal)
    store.claim()
    return create_app(state, RunManager(state, catalog, Runs(store, settings.keep_runs)))


class StoppableServer(uvicorn.Server):
    """Ends at once at a second signal of either kind; its own waits for SIGINT."""

    asked_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        del frame
        now = time.monotonic()
        # What stops a group of processes may reach each of them twice.
        self.force_exit = self.asked_at is not None and now - self.asked_at > SAME_SIGNAL_S
        self.asked_at = self.asked_at or now
        self.should_exit = True
        self._captured_signals.append(sig)


def uvicorn_server(state: ServerState, catalog: Catalog) -> StoppableServer:
    """The web server around the application of `state` and the programs of `catalog`.

    h11 parses, because it bounds the size of headers; httptools takes whatever comes.
    """
    settings = state.settings
    config = uvicorn.Config(
        _create(state, catalog),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=32 * 1024,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_s),
    )
    return StoppableServer(config)
