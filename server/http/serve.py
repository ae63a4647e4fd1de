"""Running the server: from settings to a process that answers, and back to a clean stop.

What lives here: `main`, which `phloem serve` calls, and the making of the parts it needs. What
does not: the application (`app.py`).

On SIGTERM or SIGINT the server stops taking requests, lets running ones finish for at most
`shutdown_s`, then cancels what is left; background runs stay in the journal and go on at the
next start. A second signal ends it at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
import uvicorn

from phloem.programs import registry
from phloem.programs.protocol import Backend
from phloem.server.http.app import create_app
from phloem.server.http.engine import Engine
from phloem.server.http.logs import configure_logs
from phloem.server.http.state import ServerState, make_state
from phloem.server.journal.store import Store
from phloem.server.programs.catalog import Catalog, load_catalog
from phloem.server.programs.manager import RunManager
from phloem.server.programs.rows import Runs
from phloem.server.settings import Settings

__all__ = ["main", "uvicorn_server"]

log = structlog.get_logger("phloem.server")


def main(settings: Settings, make_backend: Callable[[], Backend] | None = None) -> None:
    """Serve until a stop signal. `make_backend` loads the engine (default: the registry's).

    Raises `ConfigError` for settings that can't work, before anything listens.
    """
    configure_logs(settings)
    engine = Engine(make_backend or (lambda: registry.default("backend")))
    catalog = load_catalog(settings.programs)
    state = make_state(settings, engine, registry.default("analyser"))
    uvicorn_server(state, catalog).run()


def uvicorn_server(state: ServerState, catalog: Catalog) -> uvicorn.Server:
    """The web server around the application of `state` and the programs of `catalog`.

    h11 parses, because it bounds the size of headers; httptools takes whatever comes.
    """
    settings = state.settings
    manager = RunManager(state, catalog, Runs(Store(settings.journal), settings.keep_runs))
    config = uvicorn.Config(
        create_app(state, manager),
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
    return uvicorn.Server(config)
