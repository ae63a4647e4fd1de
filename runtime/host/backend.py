"""The embedded engine in a child process, as a `Backend`.

What lives here: `HostedBackend` and `Loader`, which names what the child makes its model with. What
does not: the child's life (`supervisor.py`) and sessions, which are those of the embedded engine:
their tokens are kept on this side, so they outlive the process that computes for them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Capabilities, ChatFormat, Segment
from phloem.runtime.embedded_session import EmbeddedSession
from phloem.runtime.engine.messages import Computed, Deliver, Failed, Message
from phloem.runtime.engine.stats import Stats
from phloem.runtime.engine.work import Flush, Pin, Work
from phloem.runtime.host import wire
from phloem.runtime.host.supervisor import Limits, State, Supervisor
from phloem.runtime.lane import Cancel
from phloem.runtime.model.text_side import ModelText
from phloem.runtime.model.tokenizer import Tokenizer
from phloem.runtime.place import Place
from phloem.runtime.token_backend import TokenBackend, outcome

__all__ = ["HostedBackend", "Loader"]

log = logging.getLogger(__name__)

_PINS = 64
"""Constant prefixes that a new process computes again."""
_NO_SESSION = 0
"""The lane of work that belongs to none."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A function that gives a `LoadedModel`, as "module:name", and its keyword arguments, which
    must be plain JSON values."""

    target: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_model(cls, name_or_path: str, device: str, dtype: str) -> Loader:
        """The usual one, `load_model`."""
        arguments = {"name_or_path": name_or_path, "device": device, "dtype": dtype}
        return cls("phloem.runtime.model.load:load_model", arguments)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the processes have told of the model."""

    capabilities: Capabilities
    text: ModelText


class HostedBackend(TokenBackend[EmbeddedSession]):
    """See `programs.protocol.Backend`; made like `EmbeddedBackend`, whose settings `engine` takes.

    An engine process that dies, hangs or leaks (`limits` says when) is replaced. Steps that it was
    doing raise `EngineRestarted`; their sessions are as they were before and go on with the next
    step, whose KV is computed again from the tokens. The model is loaded by `start`, the first
    `open`, or the first look at `capabilities`, `chat` or `count`; errors are those of the loader.
    """

    def __init__(
        self,
        model: str | Loader = "smollm2-135m-instruct",
        *,
        dtype: str = "auto",
        device: str = "auto",
        limits: Limits | None = None,
        **engine: Any,
    ) -> None:
        loader = model if isinstance(model, Loader) else Loader.of_model(model, device, dtype)
        level = logging.getLogger().getEffectiveLevel()
        self.supervisor = Supervisor(
            wire.Load(loader.target, loader.arguments, engine, level), limits or Limits()
        )
        self.supervisor.on_ready = self._pin_again
        self._lanes = itertools.count(1)
        self._pins: dict[tuple[str, tuple[int, ...]], None] = {}

    async def start(self) -> None:
        """Load the model now."""
        if self.state != "ready":
            await asyncio.to_thread(self.supervisor.ready)

    @property
    def state(self) -> State:
        """Where the engine process stands; "ready" when it can work."""
        return self.supervisor.state

    def stats(self) -> Stats | None:
        """What the engine had counted a second ago. It counts from 0 in each process."""
        return self.supervisor.stats

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend`."""
        return self._known.capabilities

    @property
    def chat(self) -> ChatFormat:
        """See `Backend`."""
        return self._text.chat

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """See `Backend`. A process that takes over computes the latest prefixes again."""
        await self._reached()
        transcript = self._transcript()
        transcript.append(segments)
        tokens = transcript.prompt().tokens
        self._pins[namespace, tuple(tokens)] = None
        while len(self._pins) > _PINS:
            self._pins.pop(next(iter(self._pins)))
        return (await self._done(Pin(tokens, namespace))).tokens

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """See `Backend`."""
        await self._reached()
        self.supervisor.inflight.tell(wire.Prepare(list(constraints)))

    async def flush_cache(self) -> None:
        """See `Backend`. Pins are given up too."""
        self._pins.clear()
        if "_known" in self.__dict__:
            await self._done(Flush())

    async def aclose(self) -> None:
        """See `Backend`."""
        await asyncio.to_thread(self.supervisor.close)

    @functools.cached_property
    def _known(self) -> _Known:
        ready = self.supervisor.ready()
        text = ModelText(
            name=ready.name,
            tokenizer=Tokenizer(ready.tokenizer),
            eos_ids=ready.eos_ids,
            chat_format=ready.chat_format,
            chat_problem=ready.chat_problem,
            bos=ready.bos,
        )
        return _Known(ready.capabilities, text)

    @property
    def _text(self) -> ModelText:
        return self._known.text

    async def _reached(self) -> None:
        """Wait for the first load; raises its error. Later loads hold up steps only."""
        if "_known" not in self.__dict__:
            await asyncio.to_thread(lambda: self._known)

    def _session(self, place: Place) -> EmbeddedSession:
        fingerprint = self.capabilities.fingerprint
        lane = _HostedLane(self.supervisor, self._lanes)
        return EmbeddedSession(lane, self._transcript(), place, fingerprint)

    async def _done(self, work: Work) -> Computed:
        submit = functools.partial(self.supervisor.inflight.submit, _NO_SESSION)
        return await outcome(submit, work)

    def _pin_again(self) -> None:
        """On the supervisor's thread, in each process that is ready."""

        def heard(message: Message) -> None:
            if isinstance(message, Failed):
                log.warning("a constant prefix was not computed again: %s", message.error.message)

        for namespace, tokens in list(self._pins):
            self.supervisor.inflight.submit(_NO_SESSION, Pin(list(tokens), namespace), heard)


class _HostedLane:
    """See `Lane`."""

    def __init__(self, supervisor: Supervisor, numbers: Iterator[int]) -> None:
        self._supervisor = supervisor
        self._numbers = numbers
        self._number = next(numbers)

    def another(self) -> _HostedLane:
        """See `Lane`."""
        return _HostedLane(self._supervisor, self._numbers)

    def submit(self, work: Work, deliver: Deliver) -> Cancel:
        """See `Lane`."""
        return self._supervisor.inflight.submit(self._number, work, deliver)

    def expect(self, next_use: int | None, place: str = "") -> None:
        """See `Lane`."""
        self._supervisor.inflight.tell(wire.Expect(self._number, next_use, place))
