"""What all requests of one server share.

What lives here: `ServerState`, made once and put on the application, and the dependency that
endpoints get it by. What does not: state of a single request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from phloem.errors import IndexNotFound
from phloem.grammar.spec import Analyser
from phloem.retrieval.base import Query, Retriever
from phloem.runtime.engine.stats import Stats
from phloem.runtime.metrics import Counting
from phloem.server.http import bridge
from phloem.server.http.aborts import Aborts
from phloem.server.http.admission import Gate
from phloem.server.http.engine import Engine
from phloem.server.http.keys import Keys
from phloem.server.http.metrics import Metrics
from phloem.server.http.pulse import Pulse
from phloem.server.http.rate import RateLimit
from phloem.server.settings import Settings

__all__ = ["ServerState", "State", "make_state"]

PROBE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class ServerState:
    """The parts of a server."""

    settings: Settings
    engine: Engine
    analyser: Analyser
    retriever: Retriever | None
    gate: Gate
    metrics: Metrics
    keys: Keys
    rate: RateLimit
    pulse: Pulse
    aborts: Aborts = field(default_factory=Aborts)

    async def check_index(self) -> None:
        """Raise the `RetrievalError` of an index that is set but can't be searched."""
        if self.retriever is None:
            return
        probe = Query("ready", k=1, timeout=PROBE_TIMEOUT_S)
        try:
            await bridge.call(self.retriever.search(probe))
        except IndexNotFound:
            # Who says that knows its indexes: it can be reached.
            return

    def namespace(self, request: Request) -> str:
        """The namespace of the caller's KV."""
        return (request.state.caller or "") if self.settings.isolate_keys else ""


def make_state(
    settings: Settings, engine: Engine, analyser: Analyser, retriever: Retriever | None = None
) -> ServerState:
    """The state of a server with these settings. Raises `ConfigError` for a bad key file."""
    gate = Gate(settings.max_running, settings.max_queued)
    return ServerState(
        settings=settings,
        engine=engine,
        analyser=analyser,
        retriever=retriever,
        gate=gate,
        metrics=Metrics(
            lambda: gate.running,
            lambda: gate.queued,
            lambda: _counted(engine),
            lambda: engine.supervisor,
        ),
        keys=Keys.from_settings(settings),
        rate=RateLimit(settings.requests_per_minute),
        pulse=Pulse(settings.engine_stuck_s),
    )


def _counted(engine: Engine) -> Stats | None:
    """What the engine has counted, if it is there and counts."""
    backend = engine.backend if engine.loaded else None
    return backend.stats() if isinstance(backend, Counting) else None


async def _state(request: Request) -> ServerState:
    found: ServerState = request.app.state.server
    return found


State = Annotated[ServerState, Depends(_state)]
"""An endpoint's parameter of this type is the server's state."""
