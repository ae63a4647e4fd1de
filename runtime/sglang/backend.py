"""A running SGLang server as a `Backend`.

What lives here: `RuntimeEndpoint`, which connects when it is first needed and opens sessions.
What does not: sessions (`session.py`), and starting a server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phloem.errors import Cancelled, ConfigError, PhloemError, Unsupported
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Backend, Capabilities, ChatFormat, Segment, Snapshot
from phloem.runtime.engine.transcript import Transcript
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.model.text import ModelText, load_model_text
from phloem.runtime.place import Place
from phloem.runtime.remote.checking import Checker
from phloem.runtime.remote.http import HttpClient
from phloem.runtime.remote.limits import Limit
from phloem.runtime.sglang.request import KINDS, constraint_fields
from phloem.runtime.sglang.server_info import ServerInfo, read_info
from phloem.runtime.sglang.session import Server, SGLangSession

__all__ = ["RuntimeEndpoint"]

_ABORT_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Connected:
    server: Server
    text: ModelText
    capabilities: Capabilities


class RuntimeEndpoint(Backend):
    """See `programs.protocol.Backend`. SGLang from 0.5.4 on, before 0.6.

    `tokenizer` is the model's tokenizer: a folder, a GGUF file, a name in the store, or a loaded
    `ModelText`; by default what the server reports, which must be on this machine too. `timeout`
    bounds each step in seconds (None: only the run's deadline does). A JSON text that
    `max_tokens` cuts stays cut (`finish="force"` can't be asked of the server).

    The server is asked what it is by `start`, the first `open`, or the first look at
    `capabilities`, `chat` or `count`; that raises `EngineError`, `ConfigError` or `ModelNotFound`.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        tokenizer: str | Path | ModelText | None = None,
        *,
        timeout: float | None = 600.0,
        connect_timeout: float = 10.0,
    ) -> None:
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"timeout is {timeout}", hint="give seconds, or None")
        self._http = HttpClient(base_url, api_key)
        self._tokenizer = tokenizer
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._lock = threading.Lock()
        self._connected: _Connected | None = None
        self._closed = False
        self._aborts: set[asyncio.Task[None]] = set()

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
        text = self._connect().text
        if text.chat_format is None:
            raise Unsupported(text.chat_problem, hint="write the prompt as plain text")
        return text.chat_format

    async def open(
        self,
        session_id: str,
        *,
        namespace: str = "",
        deadline: float | None = None,
        priority: int = 0,
        branch: str = "",
    ) -> SGLangSession:
        """See `Backend`."""
        await self.start()
        return self._session(Place(session_id, namespace, deadline, priority, branch))

    async def restore(self, snapshot: Snapshot, session_id: str) -> SGLangSession:
        """See `Backend`."""
        await self.start()
        if snapshot.fingerprint != self.capabilities.fingerprint:
            raise Unsupported(
                "the snapshot was made with another model or tokenizer",
                hint="restore it on a backend with the model it was made with",
            )
        session = self._session(Place(session_id, snapshot.namespace, branch=snapshot.branch))
        session.transcript.restore(snapshot)
        return session

    def count(self, text: str) -> int:
        """See `Backend`."""
        return len(self._connect().text.tokenizer.encode(text))

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """See `Backend`. The server may evict it: nothing can be pinned there."""
        await self.start()
        server = self._connect().server
        transcript = self._transcript()
        transcript.append(segments)
        tokens = transcript.prompt().tokens
        await server.warm(tokens, Place("prefill", namespace), Limit(self._timeout))
        return len(tokens)

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """See `Backend`."""
        await self.start()
        for constraint in constraints:
            constraint_fields(constraint)
            await self._connect().server.checker.compile(constraint)

    async def flush_cache(self) -> None:
        """See `Backend`. Raises `EngineError` if the server is busy."""
        await self.start()
        await self._http.tell("/flush_cache", Limit(self._timeout))

    async def aclose(self) -> None:
        """See `Backend`."""
        self._closed = True
        here = asyncio.get_running_loop()
        await asyncio.gather(*(task for task in self._aborts if task.get_loop() is here))
        await self._http.aclose()

    def _session(self, place: Place) -> SGLangSession:
        return SGLangSession(self._connect().server, self._transcript(), place)

    def _transcript(self) -> Transcript:
        text = self._connect().text
        return Transcript(text.tokenizer, text.start)

    def _abort(self, rids: Sequence[str]) -> None:
        task = asyncio.get_running_loop().create_task(self._abort_all(tuple(rids)))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort_all(self, rids: Sequence[str]) -> None:
        """Best effort: the closed connection ends the work too."""
        limit = Limit(_ABORT_S)
        for rid in rids:
            try:
                await self._http.tell("/abort_request", limit, {"rid": rid})
            except PhloemError as error:
                _log.warning("request %s could not be aborted: %s", rid, error.message)
                return

    def _connect(self) -> _Connected:
        with self._lock:
            if self._closed:
                raise Cancelled("the backend is closed", hint="make a new one")
            if self._connected is None:
                self._connected = self._make()
            return self._connected

    def _make(self) -> _Connected:
        model = self._http.get("/get_model_info", self._connect_timeout)
        server = self._http.get("/get_server_info", self._connect_timeout)
        info = read_info(self._http.url, model, server)
        text = self._tokenizer if isinstance(self._tokenizer, ModelText) else self._load(info)
        tokenizer = text.tokenizer
        identity = f"sglang\0{info.model}\0{info.weights}\0{tokenizer.to_json()}"
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        compiler = GrammarCompiler(tokenizer.to_json(), tokenizer.vocab_size, sorted(text.eos_ids))
        shared = Server(
            http=self._http,
            info=info,
            vocabulary=Vocabulary(tokenizer, tokenizer.vocab_size, text.eos_ids),
            checker=Checker(compiler, tokenizer),
            fingerprint=fingerprint,
            timeout=self._timeout,
            abort=self._abort,
        )
        capabilities = Capabilities(
            model=info.model,
            fingerprint=fingerprint,
            max_context=info.max_context,
            constraints=KINDS if info.grammars else frozenset(),
            score=True,
            logprobs=True,
            seed=info.seeds,
            snapshot=True,
        )
        return _Connected(shared, text, capabilities)

    def _load(self, info: ServerInfo) -> ModelText:
        assert not isinstance(self._tokenizer, ModelText)
        return load_model_text(self._tokenizer or info.tokenizer)
