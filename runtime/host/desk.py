"""The work of the engine's process: messages to jobs, and what they come to back to messages.

What lives here: `make_desk`, from the first message to an engine, and `Desk`. What does not: the
process's life (`child.py`) and the engine.
"""

from __future__ import annotations

import importlib
import threading
from concurrent.futures import Future

from phloem.errors import ConfigError
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.engine.messages import Failed, Message, Progress
from phloem.runtime.host import wire
from phloem.runtime.host.channel import Channel
from phloem.runtime.lane import Cancel
from phloem.runtime.local import LocalLane, Services
from phloem.runtime.model.loaded import LoadedModel

__all__ = ["Desk", "make_desk"]


def make_desk(load: wire.Load, channel: Channel[wire.FromChild]) -> Desk:
    """Load the model and start its engine. Raises what the loader raises, and `ConfigError`."""
    channel.put(wire.Loading("loading the model"))
    module, _, name = load.loader.partition(":")
    model: LoadedModel = getattr(importlib.import_module(module), name)(**load.arguments)
    channel.put(wire.Loading("starting the engine"))
    try:
        backend = EmbeddedBackend(model, **load.settings)
    except TypeError as error:
        raise ConfigError(f"the engine has no such setting: {error}") from error
    services = backend.services
    ready = wire.Ready(
        capabilities=backend.capabilities,
        name=model.name,
        tokenizer=model.tokenizer.to_json(),
        eos_ids=model.eos_ids,
        chat_format=model.chat_format,
        chat_problem=model.chat_problem,
        bos=model.bos,
        pool_bytes=(services.settings.kv_tokens or 0) * model.decoder.kv_bytes_per_token(),
    )
    return Desk(services, channel, ready)


class Desk:
    """See `child.Desk`. Used by the process's main thread; replies come from the engine's."""

    def __init__(
        self, services: Services, channel: Channel[wire.FromChild], ready: wire.Ready
    ) -> None:
        self.ready = ready
        self._services = services
        self._channel = channel
        self._lanes: dict[int, LocalLane] = {}
        self._lock = threading.Lock()
        self._jobs: dict[int, Cancel | None] = {}

    def take(self, message: wire.Submit | wire.Cancel | wire.Expect | wire.Prepare) -> None:
        """Do it; never waits."""
        match message:
            case wire.Submit():
                self._submit(message)
            case wire.Cancel():
                with self._lock:
                    cancel = self._jobs.pop(message.job, None)
                if cancel is not None:
                    cancel()
            case wire.Expect():
                self._lane(message.lane).expect(message.next_use, message.place)
                if message.next_use is None:
                    self._lanes.pop(message.lane, None)
            case wire.Prepare():
                for constraint in message.constraints:
                    self._services.threads.submit(self._services.compiler.compile, constraint)

    def answer(self, ping: wire.Ping) -> None:
        """Put the pong into the channel, once the engine's thread has come by."""

        def pong(done: Future[None]) -> None:
            if done.exception() is None:
                stats = self._services.engine.stats()
                self._channel.put(wire.Pong(ping.number, stats))

        self._services.engine.call(lambda _: None).add_done_callback(pong)

    def stop(self) -> None:
        """End all jobs and the engine."""
        self._services.stop()

    def _lane(self, number: int) -> LocalLane:
        found = self._lanes.get(number)
        if found is None:
            found = self._lanes[number] = LocalLane(self._services)
        return found

    def _submit(self, asked: wire.Submit) -> None:
        number = asked.job

        def deliver(message: Message) -> None:
            if not isinstance(message, Progress):
                with self._lock:
                    self._jobs.pop(number, None)
            if isinstance(message, Failed):
                self._channel.put(wire.Broken(number, wire.ErrorRecord.of(message.error)))
            else:
                self._channel.put(wire.Reply(number, message))

        self._jobs[number] = None
        cancel = self._lane(asked.lane).submit(asked.work, deliver)
        with self._lock:
            if number in self._jobs:  # it may be over already
                self._jobs[number] = cancel
