"""The servers behind one backend: which of them a step goes to, and what happens when one dies.

What lives here: `Server`, one address with what is known of it, and `Fleet`, the choice among
them. What does not: requests (`session.py`).

A session stays with the server that holds its prefix. A new one goes where most of its first
prompt is cached already, unless that server is much busier than the others (the rule of
SGLang's own cache-aware router). A server that can't be reached is left out for a while, then
asked how it is before it gets work again. One that refuses work rests for as long as it says. One
that was silent is asked whether it still serves the same model: another may have taken its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

from phloem.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    Overloaded,
    PhloemError,
)
from phloem.runtime.remote.http import HttpClient
from phloem.runtime.remote.limits import Limit
from phloem.runtime.sglang.server_info import ServerInfo, identity, read_info

__all__ = ["Fleet", "Server", "counted", "describe"]

_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_PROBE_S = 2.0
_SILENT_S = 5.0
"""How long a server may have said nothing before it is asked what it serves: no other model can be
loaded in less."""
_DESCRIBE_S = 5.0
_ABORT_S = 5.0
_BLOCK = 64
"""Tokens that are remembered as one."""
_REMEMBERED = 16_384
"""Blocks remembered per server: a million tokens."""
_IMBALANCE = 8
"""Running requests that a server may be ahead of the least busy one for the sake of its cache."""

_log = logging.getLogger(__name__)


class Server:
    """One address. `info` is None until it has answered once; `running` counts our requests."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http
        self.info: ServerInfo | None = None
        self.running = 0
        self.sessions = 0
        """Sessions that were sent here first."""
        self.problem: EngineUnavailable | None = None
        self._failures = 0
        self._paused_until = 0.0
        self._rests_until = 0.0
        self._heard = 0.0
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    @property
    def known(self) -> ServerInfo:
        """What it said of itself. It must have answered once."""
        assert self.info is not None
        return self.info

    @property
    def due(self) -> bool:
        """Whether it is down, and has been left alone long enough."""
        return self.problem is not None and time.monotonic() >= self._paused_until

    @property
    def rests(self) -> bool:
        """Whether it has refused work, and not come again yet."""
        return time.monotonic() < self._rests_until

    def connect(self, timeout: float) -> None:
        """Ask it what it is. Blocks. Raises what `HttpClient.get` and `read_info` raise."""
        model = self.http.get("/get_model_info", timeout)
        self.info = read_info(self.http.url, model, self.http.get("/get_server_info", timeout))
        self.heard()

    def heard(self) -> None:
        """It has answered."""
        self._heard = time.monotonic()

    async def confirm(self, limit: Limit) -> None:
        """Ask what it serves, if it was silent for long or has failed.

        Raises `EngineUnavailable` if that is another model, and what `HttpClient.fetch` raises.
        """
        if self.problem is None and time.monotonic() - self._heard < _SILENT_S:
            return
        model = await self.http.fetch("/get_model_info", limit)
        if identity(model) != self.known.identity:
            raise _changed(self, model["model_path"])
        self.problem, self._failures = None, 0
        self.heard()

    async def revive(self) -> None:
        """Ask whether it works again, and with the same model; else it stays down."""
        limit = Limit(_PROBE_S)
        try:
            model = await self.http.fetch("/get_model_info", limit)
            server = await self.http.fetch("/get_server_info", limit)
            info = read_info(self.http.url, model, server)
        except PhloemError as error:
            self.fail(_unavailable(self.http.url, error))
            return
        if self.info is not None and info.identity != self.info.identity:
            self.fail(_changed(self, info.model))
            return
        self.info, self.problem, self._failures = info, None, 0
        self.heard()

    def fail(self, error: EngineUnavailable) -> None:
        """Leave it alone for a while, longer each time."""
        self.forget()
        _log.warning("%s is left out: %s", self.http.url, error.message)
        if self.problem is not None and not self.due:
            return  # Requests that ran at once fail at once; that is one failure.
        self.problem = error
        pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2**self._failures)
        self._failures += 1
        self._paused_until = time.monotonic() + pause

    def rest(self, error: Overloaded) -> None:
        """It has too much to do: give it no new work for as long as it says. Its cache stays."""
        pause = min(_LONGEST_PAUSE_S, error.details.get("retry_after_s", _PAUSE_S))
        self._rests_until = time.monotonic() + pause

    def cached(self, keys: Sequence[bytes]) -> int:
        """How many leading blocks it has computed, as far as we remember."""
        return next((i for i, key in enumerate(keys) if key not in self._blocks), len(keys))

    def forget(self) -> None:
        """It has lost its cache, as far as we know."""
        self._blocks.clear()

    def remember(self, keys: Sequence[bytes]) -> None:
        """It has computed these blocks."""
        for key in keys:
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > _REMEMBERED:
            self._blocks.popitem(last=False)


class Fleet:
    """The servers of a backend, at least one."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = list(servers)
        self._aborts: set[asyncio.Task[None]] = set()

    def connect(self, timeout: float) -> ServerInfo:
        """Ask all of them what they are; those that don't answer are down. Blocks.

        Raises the error of the first if none answers, and `ConfigError` for different models.
        """
        for server in self.servers:
            try:
                server.connect(timeout)
            except EngineUnavailable as error:
                server.fail(error)
        up = self.up
        if not up:
            assert self.servers[0].problem is not None
            raise self.servers[0].problem
        first = up[0]
        for other in up[1:]:
            if (other.known.identity, other.known.grammar) != (
                first.known.identity, first.known.grammar,
            ):  # fmt: skip
                raise ConfigError(
                    f"{first.http.url} serves {_shown(first.known)}, but {other.http.url} serves "
                    f"{_shown(other.known)}",
                    hint="give servers of one model, started alike",
                )
        return first.known

    async def choose(
        self, tokens: Sequence[int], namespace: str, home: Server | None, tried: Collection[Server]
    ) -> Server:
        """The server for a step on these tokens, `home` if it can be; none of those `tried`.

        Raises `EngineUnavailable` if there is none.
        """
        if len(self.servers) == 1 and not tried:
            return self.servers[0]
        await asyncio.gather(*(s.revive() for s in self.servers if s.due and s not in tried))
        up = [s for s in self.servers if s.problem is None and s not in tried]
        if not up:
            raise self._none_left()
        up = [server for server in up if not server.rests] or up
        if home in up:
            assert home is not None
            return home
        least = min(server.running for server in up)
        near = [server for server in up if server.running - least <= _IMBALANCE]
        keys = self.keys(tokens, namespace)
        best = max(near, key=lambda s: (s.cached(keys), -s.running, -s.sessions))
        best.sessions += 1
        return best

    def keys(self, tokens: Sequence[int], namespace: str) -> list[bytes]:
        """A key for each whole block of `tokens`, of it and all before it."""
        key, found = namespace.encode(), []
        for at in range(0, len(tokens) - _BLOCK + 1, _BLOCK):
            block = array("q", tokens[at : at + _BLOCK]).tobytes()
            key = hashlib.blake2b(key + block, digest_size=16).digest()
            found.append(key)
        return found

    def computed(self, tokens: Sequence[int], namespace: str, home: Server | None) -> int:
        """How many of `tokens` the session's server has computed for any session, as far as we
        know: it may have forgotten them since."""
        if home is None and len(self.servers) == 1:
            home = self.servers[0]
        return _BLOCK * home.cached(self.keys(tokens, namespace)) if home is not None else 0

    async def everywhere(self, work: Callable[[Server], Awaitable[None]]) -> list[Server]:
        """Do `work` on every server that works; those that did it.

        Raises `EngineUnavailable` or `Overloaded` if none did.
        """
        busy: list[Overloaded] = []

        async def at(server: Server) -> Server | None:
            try:
                with counted(server):
                    await work(server)
            except EngineUnavailable as error:
                server.fail(error)
                return None
            except Overloaded as error:
                server.rest(error)
                busy.append(error)
                return None
            return server

        asked = self.servers if len(self.servers) == 1 else self.up
        done = [server for server in await asyncio.gather(*map(at, asked)) if server is not None]
        if not done:
            raise busy[0] if busy else self._none_left()
        return done

    @property
    def up(self) -> list[Server]:
        """Those that work, as far as we know."""
        return [server for server in self.servers if server.problem is None]

    def abort(self, server: Server, rids: Sequence[str]) -> None:
        """Tell a server to end requests; does not wait for its answer."""
        task = asyncio.get_running_loop().create_task(_abort(server, tuple(rids)))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def aclose(self) -> None:
        """Finish what is being told, and close this event loop's connections."""
        here = asyncio.get_running_loop()
        await asyncio.gather(*(task for task in self._aborts if task.get_loop() is here))
        for server in self.servers:
            await server.http.aclose()

    def _none_left(self) -> EngineUnavailable:
        problems = [s.problem for s in self.servers if s.problem is not None]
        if len(problems) == 1:
            return problems[0]
        return EngineUnavailable(
            f"none of the {len(self.servers)} servers can be reached: "
            + "; ".join(error.message for error in problems),
            hint="start them, check the URLs",
        )


@contextlib.contextmanager
def counted(server: Server) -> Iterator[None]:
    """Work on a server."""
    server.running += 1
    try:
        yield
        server.heard()
    finally:
        server.running -= 1


def describe(url: str, api_key: str | None = None) -> str:
    """What the server at `url` is and has, in a line for people. Blocks. Raises what
    `Server.connect` raises: also for a version that is not supported."""
    server = Server(HttpClient(url, api_key))
    server.connect(_DESCRIBE_S)
    info = server.known
    parts = [
        f"{url}: {info.product} {info.version}",
        info.model,
        f"{info.max_context} tokens of context",
        f"grammar backend {info.grammar}",
        info.memory,
    ]
    return ", ".join(part for part in parts if part)


async def _abort(server: Server, rids: Sequence[str]) -> None:
    """Best effort: the closed connection ends the work too."""
    limit = Limit(_ABORT_S)
    for rid in rids:
        try:
            await server.http.tell("/abort_request", limit, {"rid": rid})
        except PhloemError as error:
            _log.warning("request %s could not be aborted: %s", rid, error.message)
            return


def _unavailable(url: str, reason: EngineError | PhloemError | str) -> EngineUnavailable:
    text = reason.message if isinstance(reason, PhloemError) else reason
    return EngineUnavailable(f"{url} can't be used: {text}", hint="look into the server's log")


def _changed(server: Server, model: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"{server.http.url} serves another model now ({model}), or other weights of it",
        hint=f"start it with {server.known.model} again, or make a new backend",
    )


def _shown(info: ServerInfo) -> str:
    return f"{info.model} (grammar backend {info.grammar})"
