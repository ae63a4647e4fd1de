"""What the engine tests share: a backend on the tiny model whose decoder counts its work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import pytest_asyncio
import torch

from phloem.programs.protocol import SamplingParams, Special, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.batch import ForwardBatch
from phloem.runtime.model.load import load_model
from phloem.runtime.model.tiny import tiny_model


class CountingDecoder:
    """Passes everything on to a decoder, and notes the rows of each forward pass.

    `seen` holds each row's (position, token). `before` may be set to look at a batch, or to
    fail, before it is computed.
    """

    def __init__(self, decoder):
        self._decoder = decoder
        self.passes: list[int] = []
        self.seen: list[tuple[int, int]] = []
        self.before: Callable[[ForwardBatch], None] | None = None

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    @property
    def rows(self) -> int:
        return sum(self.passes)

    def forward(self, batch, kv):
        if self.before is not None:
            self.before(batch)
        self.passes.append(len(batch.tokens))
        self.seen += zip(batch.positions.tolist(), batch.tokens.tolist(), strict=True)
        return self._decoder.forward(batch, kv)


class Lab:
    """A backend with a counting decoder, and short ways to say what tests say often."""

    def __init__(self, model, **settings) -> None:
        self.decoder = CountingDecoder(model.decoder)
        self.model = dataclasses.replace(model, decoder=self.decoder)
        self.backend = EmbeddedBackend(self.model, **settings)

    @property
    def engine(self):
        return self.backend.engine

    async def session(self, *segments, name="s", **opened):
        session = await self.backend.open(name, **opened)
        session.append([Text(s) if isinstance(s, str) else s for s in segments])
        return session

    async def chat(self, question, **opened):
        """A session that ends where the assistant's answer begins."""
        chat = self.backend.chat
        return await self.session(
            *chat.prefix["user"],
            question,
            *chat.suffix["user"],
            *chat.prefix["assistant"],
            **opened,
        )

    @staticmethod
    async def events(session, constraint=None, **params):
        """All that a step yields, greedy unless said otherwise."""
        asked = SamplingParams(**{"temperature": 0, "max_tokens": 8, **params})
        return [item async for item in session.generate(asked, constraint)]

    @classmethod
    async def say(cls, session, constraint=None, **params) -> StepResult:
        return (await cls.events(session, constraint, **params))[-1]

    def state(self, look):
        """What `look` finds in the engine's state, between two steps."""
        return self.engine.call(look).result()

    def at_rest(self) -> None:
        """Nothing runs, nothing leaks: free + cached = pool."""
        self.engine.audit()
        pool, pinned, jobs = self.state(
            lambda s: (s.pool, s.pins.pages(), len(s.running) + len(s.waiting))
        )
        assert jobs == 0
        assert pool.used == pinned
        assert pool.free + pool.cached + pinned == pool.pages


@pytest.fixture(autouse=True)
def one_thread(request):
    """The tiny model gains nothing from a second thread, and loses much where cores are busy."""
    threads = torch.get_num_threads()
    if "model" not in request.keywords:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny():
    """The two-layer random model."""
    return tiny_model()


@pytest.fixture(scope="session")
def smollm2():
    """The real model in float32."""
    return load_model(dtype="float32")


@pytest_asyncio.fixture
async def make_lab(tiny):
    """Makes labs (on the tiny model unless one is given); audits and closes them at the end."""
    made: list[Lab] = []

    def make(model=None, **settings) -> Lab:
        settings.setdefault("kv_tokens", 4096)
        made.append(Lab(model or tiny, **settings))
        return made[-1]

    yield make
    for lab in made:
        lab.at_rest()
        await lab.backend.aclose()


@pytest.fixture
def special():
    """Shorthand for a special token."""
    return Special
