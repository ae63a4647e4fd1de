"""The embedded engine as a `Backend`: torch in this process, on the CPU or a CUDA device.

What lives here: `EmbeddedBackend`, which loads the model when it is first needed and opens sessions
on its engine. What does not: sessions (`embedded_session.py`), the engine (`engine/`), models
(`model/`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Sequence
from typing import Literal

import torch

from phloem.errors import Cancelled, EngineError
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Capabilities, ChatFormat, Segment
from phloem.runtime.embedded_session import EmbeddedSession
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.engine import Engine
from phloem.runtime.engine.messages import Computed
from phloem.runtime.engine.stats import Stats
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.engine.work import Flush, Pin, Work
from phloem.runtime.local import LocalLane, Services
from phloem.runtime.model.batch import Decoder
from phloem.runtime.model.load import load_model
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.place import Place
from phloem.runtime.token_backend import TokenBackend, outcome

__all__ = ["EmbeddedBackend"]

_CPU_BYTES = 2 << 30
_CPU_TOKENS = 65_536


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    model: LoadedModel
    services: Services
    capabilities: Capabilities


class EmbeddedBackend(TokenBackend[EmbeddedSession]):
    """See `programs.protocol.Backend`.

    `model` is a name, a path, or a model that is loaded already. `kv_tokens` sizes the KV pool
    (default: at most 65,536 tokens, 2 GB and a quarter of the free memory on a CPU; 80% of the
    free memory on a CUDA device), `host_tokens` what the host keeps beside it (default: none on a
    CPU; four pools, and at most a quarter of the free memory, on a CUDA device). The other settings
    are those of `EngineConfig`; one that is out of its range raises `ConfigError`.

    The model is loaded by `start`, the first `open`, or the first look at `capabilities`,
    `chat` or `count`; errors are those of `load_model`. May be used from several event loops.
    """

    def __init__(
        self,
        model: str | LoadedModel = "smollm2-135m-instruct",
        *,
        dtype: str = "auto",
        device: str = "auto",
        kv_tokens: int | None = None,
        prefault: bool = False,
        host_tokens: int | None = None,
        restore_from: int | None = None,
        page_size: int = 16,
        max_running: int = 32,
        queue_limit: int = 1024,
        overtakes: int = 32,
        max_rows: int = 512,
        inter_token_ms: float | None = None,
        pinned_share: float = 0.25,
        eviction: Literal["program", "lru"] = "program",
        prefix_cache: bool = True,
        jump_forward: bool = True,
        drafts: bool = True,
    ) -> None:
        self._model = model
        self._dtype, self._device = dtype, device
        self._settings = EngineConfig(
            kv_tokens=kv_tokens,
            prefault=prefault,
            host_tokens=host_tokens,
            restore_from=restore_from,
            page_size=page_size,
            max_running=max_running,
            queue_limit=queue_limit,
            overtakes=overtakes,
            max_rows=max_rows,
            inter_token_ms=inter_token_ms,
            pinned_share=pinned_share,
            eviction=eviction,
            prefix_cache=prefix_cache,
            jump_forward=jump_forward,
            drafts=drafts,
        )
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        self._process = os.getpid()
        self._closed = False

    async def start(self) -> None:
        """Load the model now."""
        if self._loaded is None:
            await asyncio.to_thread(self._load)

    @property
    def services(self) -> Services:
        """What lanes to the engine need; loads the model."""
        return self._load().services

    @property
    def engine(self) -> Engine:
        """The engine, for metrics and tests."""
        return self.services.engine

    def stats(self) -> Stats | None:
        """What the engine has counted; None before the model is loaded."""
        loaded = self._loaded
        return None if loaded is None else loaded.services.engine.stats()

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend`."""
        return self._load().capabilities

    @property
    def chat(self) -> ChatFormat:
        """See `Backend`."""
        return self._text.chat

    @property
    def _text(self) -> LoadedModel:
        return self._load().model

    async def _reached(self) -> None:
        await self.start()

    def _session(self, place: Place) -> EmbeddedSession:
        loaded = self._load()
        lane = LocalLane(loaded.services)
        return EmbeddedSession(lane, self._transcript(), place, loaded.model.fingerprint)

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """See `Backend`. Pins take at most `pinned_share` of the pool; the oldest give way."""
        await self.start()
        transcript = self._transcript()
        transcript.append(segments)
        return (await self._done(Pin(transcript.prompt().tokens, namespace))).tokens

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """See `Backend`."""
        await self.start()
        for constraint in constraints:
            await asyncio.to_thread(self.services.compiler.compile, constraint)

    async def flush_cache(self) -> None:
        """See `Backend`. Pins are given up too."""
        if self._loaded is not None:
            await self._done(Flush())

    async def _done(self, work: Work) -> Computed:
        return await outcome(LocalLane(self.services).submit, work)

    async def aclose(self) -> None:
        """See `Backend`. A load that is under way ends first: it can't be interrupted in here."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            loaded = self._loaded
        if loaded is not None:
            loaded.services.stop()

    def _load(self) -> _Loaded:
        with self._lock:
            if self._closed:
                raise Cancelled("the backend is closed", hint="make a new one")
            if self._loaded is None:
                self._loaded, self._process = self._make(), os.getpid()
            if self._process != os.getpid():
                raise EngineError(
                    "the engine was loaded before this process was forked, and its threads are "
                    "not here",
                    hint='start processes with multiprocessing.get_context("spawn"), or load the '
                    "model in them alone",
                )
            return self._loaded

    def _make(self) -> _Loaded:
        model = self._model
        if isinstance(model, str):
            model = load_model(model, device=self._device, dtype=self._dtype)
        settings = self._settings
        vocabulary = Vocabulary(model.tokenizer, model.decoder.vocab_size, model.eos_ids)
        if settings.kv_tokens is None:
            tokens = max(_pool(model.decoder), settings.page_size)
            settings = dataclasses.replace(settings, kv_tokens=tokens)
        if settings.host_tokens is None:
            tokens = _host(model.decoder, settings.kv_tokens or 0)
            settings = dataclasses.replace(settings, host_tokens=tokens)
        engine = Engine(model.decoder, vocabulary, settings)
        compiler = GrammarCompiler(
            model.tokenizer.to_json(), vocabulary.width, sorted(model.eos_ids)
        )
        services = Services(engine, vocabulary, compiler, settings)
        capabilities = Capabilities(
            model=model.name,
            fingerprint=model.fingerprint,
            max_context=engine.max_tokens,
            constraints=frozenset({"regex", "json_schema", "choices", "lark"}),
            score=True,
            logprobs=True,
            seed=True,
            fork=True,
            snapshot=True,
            penalties=True,
        )
        return _Loaded(model, services, capabilities)


def _pool(decoder: Decoder) -> int:
    """The default size of the KV pool, in tokens."""
    if decoder.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(decoder.device)
        return int(0.8 * free) // decoder.kv_bytes_per_token()
    budget = min(_CPU_BYTES, _free_memory() // 4)
    return min(_CPU_TOKENS, budget // decoder.kv_bytes_per_token())


def _host(decoder: Decoder, kv_tokens: int) -> int:
    """The default size of the host's part, in tokens: beside a CPU's pool there is no point."""
    if decoder.device.type == "cpu":
        return 0
    return min(4 * kv_tokens, _free_memory() // 4 // decoder.kv_bytes_per_token())


def _free_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
