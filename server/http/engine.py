"""The server's engine: loading, loaded, being replaced, or failed to load.

What lives here: the holder of the one `Backend`, which loads it while the server already
answers probes. What does not: the backend (runtime), which replaces its own process, and the
crossing to its loop (`bridge.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import structlog

from phloem.errors import Cancelled, Overloaded, PhloemError
from phloem.programs.protocol import Backend
from phloem.runtime.host.backend import HostedBackend
from phloem.runtime.host.supervisor import Supervisor
from phloem.server.http import bridge

__all__ = ["Engine"]

log = structlog.get_logger("phloem.server")

T = TypeVar("T")

_POLL_S = 0.05
GIVE_UP_S = 3.0
"""How long a server that stops waits for a model that loads in its own process."""
_RETRY_S = 2.0
"""Between attempts to reach an engine elsewhere that is not there yet."""


class Engine:
    """Makes its backend by `make`, in a thread, once `start` is called; again and again while that
    fails with an error that may pass (`retryable`)."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        self._make = make
        self._made: Backend | None = None
        """What was made, loaded or not: it can be closed meanwhile."""
        self._backend: Backend | None = None
        self._loading: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.error: PhloemError | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a backend. Requests are served, or wait while it is replaced."""
        return self._backend is not None

    @property
    def status(self) -> str:
        """ "loaded", "loading", "restarting", or "failed: " and the error's class."""
        if self.error is not None:
            return f"failed: {type(self.error).__name__}"
        if self._backend is None:
            return "loading"
        supervisor = self.supervisor
        return "loaded" if supervisor is None or supervisor.state == "ready" else supervisor.state

    @property
    def supervisor(self) -> Supervisor | None:
        """What watches the engine's process, if it has one of its own and has been loaded."""
        return self._backend.supervisor if isinstance(self._backend, HostedBackend) else None

    async def replaced(self) -> None:
        """Wait until an engine that went away is back."""
        while self.status != "loaded":  # noqa: ASYNC110 - it changes on another thread
            await asyncio.sleep(_POLL_S)

    @property
    def backend(self) -> Backend:
        """The backend. Raises `Overloaded` while it loads, and the reason if it can't."""
        if self._backend is not None:
            return self._backend
        if self.error is not None:
            raise self.error
        raise Overloaded("the model is still loading", hint="wait for /ready", retry_after_s=2)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._loading = asyncio.ensure_future(self._load())

    async def _load(self) -> None:
        while True:
            try:
                self._backend = await _on_thread(self._loads)
                self.error = None
                return
            except PhloemError as error:
                self.error = error
                if self._stopping.is_set():
                    return
                log.error("model_not_loaded", error=type(error).__name__, reason=error.message)
                if not error.retryable:
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _RETRY_S)

    def _loads(self) -> Backend:
        """On a thread."""
        self._made = backend = self._make()
        if self._stopping.is_set():
            raise Cancelled("the server is stopping")
        # An engine may load its weights at the first look at what it can do: look now.
        log.info("model_ready", model=backend.capabilities.model)
        return backend

    async def wait(self) -> None:
        """Wait until loading has ended, well or not."""
        if self._loading is not None:
            await asyncio.wait({self._loading})

    async def stop(self) -> None:
        """Give the backend up, loaded or not; running steps end with `Cancelled`."""
        self._stopping.set()
        closing = asyncio.ensure_future(self._close())
        done, _ = await asyncio.wait({closing}, timeout=None if self.loaded else GIVE_UP_S)
        if done:
            closing.result()
        else:
            # A load in this process can't be interrupted; its thread ends with the process.
            log.warning("load_given_up", after_s=GIVE_UP_S)
            closing.cancel()

    async def _close(self) -> None:
        closed = self._made
        if closed is not None:
            await bridge.call(closed.aclose())
        await self.wait()
        if self._made is not None and self._made is not closed:
            await bridge.call(self._made.aclose())


async def _on_thread(work: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, on a thread that the process does not wait for when it ends."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - raised again by whoever awaits it
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="phloem-load", daemon=True).start()
    return await asyncio.wrap_future(done)
