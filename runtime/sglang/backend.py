"""Running SGLang servers as a `Backend`.

What lives here: `RuntimeEndpoint`, which connects when it is first needed and opens sessions.
What does not: sessions (`session.py`), the choice of a server (`fleet.py`), and starting one
(`launch.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phloem.errors import Cancelled, ConfigError, Unsupported
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Capabilities, ChatFormat, Segment
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.model.text import ModelText, load_model_text
from phloem.runtime.place import Place
from phloem.runtime.remote.checking import Checker
from phloem.runtime.remote.http import HttpClient
from phloem.runtime.remote.limits import Limit
from phloem.runtime.sglang.course import Tokens
from phloem.runtime.sglang.fleet import Fleet, Server
from phloem.runtime.sglang.request import kinds
from phloem.runtime.sglang.server_info import ServerInfo
from phloem.runtime.sglang.session import SGLangSession, Shared, warm
from phloem.runtime.token_backend import TokenBackend

__all__ = ["RuntimeEndpoint"]


@dataclass(frozen=True, slots=True)
class _Connected:
    shared: Shared
    text: ModelText
    capabilities: Capabilities


class RuntimeEndpoint(TokenBackend[SGLangSession]):
    """See `programs.protocol.Backend`. SGLang from 0.5.4 on, before 0.6; or phloem's own server.

    `base_url` may be several addresses (a list, or one text with commas) of servers of one model:
    a session stays with the server that holds its prefix, and goes on at another one with its
    tokens when that fails. A step is lost only if its server dies after the first token of an
    output with a constraint or penalties, which can't be continued from its tokens.

    `tokenizer` is the model's tokenizer: a folder, a GGUF file, a name in the store, or a loaded
    `ModelText`; by default what the server reports, which must be on this machine too. `timeout`
    bounds each step in seconds (None: only the run's deadline does). A JSON text that
    `max_tokens` cuts stays cut (`finish="force"` can't be asked of the server).

    The server is asked what it is by `start`, the first `open`, or the first look at
    `capabilities`, `chat` or `count`; that raises `EngineError`, `ConfigError` or `ModelNotFound`.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        tokenizer: str | Path | ModelText | None = None,
        *,
        timeout: float | None = 600.0,
        connect_timeout: float = 10.0,
    ) -> None:
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"timeout is {timeout}", hint="give seconds, or None")
        urls = base_url.split(",") if isinstance(base_url, str) else base_url
        clients = [HttpClient(url.strip(), api_key) for url in urls if url.strip()]
        if not clients:
            raise ConfigError("no server is given", hint="give its address: http://HOST:PORT")
        self._fleet = Fleet([Server(client) for client in clients])
        self._tokenizer = tokenizer
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._lock = threading.Lock()
        self._connected: _Connected | None = None
        self._closed = False

    async def start(self) -> None:
        """Connect now."""
        if self._connected is None:
            await asyncio.to_thread(self._connect)

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend`. `seed` is true where the server runs deterministic inference."""
        return self._connect().capabilities

    @property
    def chat(self) -> ChatFormat:
        """See `Backend`."""
        text = self._text
        if text.chat_format is None:
            raise Unsupported(text.chat_problem, hint="write the prompt as plain text")
        return text.chat_format

    def _reach(self) -> None:
        """What has to happen before servers can answer: nothing, for those that run."""

    @property
    def urls(self) -> list[str]:
        """The addresses."""
        return [server.http.url for server in self._fleet.servers]

    @property
    def servers(self) -> dict[str, ServerInfo | None]:
        """What each server says of itself, by address; None for one that can't be reached."""
        self._connect()
        return {
            server.http.url: server.info if server.problem is None else None
            for server in self._fleet.servers
        }

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """See `Backend`. On every server; it may be evicted, for nothing can be pinned there."""
        await self.start()
        transcript = self._transcript()
        transcript.append(segments)
        tokens = transcript.prompt().tokens
        place, limit = Place("prefill", namespace), Limit(self._timeout)
        keys = self._fleet.keys(tokens, namespace)
        for server in await self._fleet.everywhere(lambda at: warm(at, tokens, place, limit)):
            server.remember(keys)
        return len(tokens)

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """See `Backend`."""
        await self.start()
        shared = self._connect().shared
        for constraint in constraints:
            await shared.checker.compile(constraint)

    async def flush_cache(self) -> None:
        """See `Backend`. Raises `EngineError` if the server is busy."""
        await self.start()
        limit = Limit(self._timeout)
        for server in await self._fleet.everywhere(lambda at: at.http.tell("/flush_cache", limit)):
            server.forget()

    async def aclose(self) -> None:
        """See `Backend`."""
        self._closed = True
        await self._fleet.aclose()

    @property
    def _text(self) -> ModelText:
        return self._connect().text

    async def _reached(self) -> None:
        await self.start()

    def _session(self, place: Place) -> SGLangSession:
        return SGLangSession(self._connect().shared, self._transcript(), place)

    def _connect(self) -> _Connected:
        with self._lock:
            if self._closed:
                raise Cancelled("the backend is closed", hint="make a new one")
            if self._connected is None:
                self._connected = self._make()
            return self._connected

    def _make(self) -> _Connected:
        self._reach()
        info = self._fleet.connect(self._connect_timeout)
        infos = [server.known for server in self._fleet.up]
        text = self._tokenizer if isinstance(self._tokenizer, ModelText) else self._load(info)
        tokenizer = text.tokenizer
        identity = f"sglang\0{info.identity}\0{tokenizer.to_json()}"
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        compiler = GrammarCompiler(tokenizer.to_json(), tokenizer.vocab_size, sorted(text.eos_ids))
        vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, text.eos_ids)
        shared = Shared(
            fleet=self._fleet,
            vocabulary=vocabulary,
            tokens=Tokens(vocabulary.token_bytes),
            checker=Checker(compiler, tokenizer),
            fingerprint=fingerprint,
            grammar=info.grammar,
            seeds=all(each.seeds for each in infos),
            max_context=min(each.max_context for each in infos),
            timeout=self._timeout,
        )
        capabilities = Capabilities(
            model=info.model,
            fingerprint=fingerprint,
            max_context=shared.max_context,
            constraints=kinds(info.grammar),
            score=True,
            logprobs=True,
            seed=shared.seeds,
            snapshot=True,
        )
        return _Connected(shared, text, capabilities)

    def _load(self, info: ServerInfo) -> ModelText:
        assert not isinstance(self._tokenizer, ModelText)
        return load_model_text(self._tokenizer or info.tokenizer)
