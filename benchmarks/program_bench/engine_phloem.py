"""phloem as an engine of the benchmark: embedded, or over an SGLang server.

What lives here: `PhloemRunner` and how its work is watched. What does not: the programs
(`frontend.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx
import torch

import phloem
from phloem.programs.events import RunFinished, StepFinished
from phloem.programs.protocol import SamplingParams, Snapshot, StepResult, Usage
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.batch import Decoder, ForwardBatch, KVStorage
from phloem.runtime.model.load import load_model
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tokenizer import Tokenizer
from phloem.runtime.sglang.backend import RuntimeEndpoint

from .calibrate import calibrate
from .counting import optimal_prefill
from .frontend import program
from .shapes import SHAPES
from .tally import Outputs, Tally

__all__ = ["PhloemRunner", "embedded", "over_sglang"]


class WatchedDecoder:
    """A decoder that notes the rows of each pass, and its seconds."""

    def __init__(self, decoder: Decoder) -> None:
        self.inner = decoder
        self.passes: list[tuple[int, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """See `Decoder`."""
        began = time.perf_counter()
        logits = self.inner.forward(batch, kv)
        seconds = time.perf_counter() - began
        self.passes.append((batch.query_starts[-1], seconds))
        return logits


class Calls:
    """Counts the HTTP requests and the tokenisations of this process."""

    def __init__(self) -> None:
        self.http = self.tokenised = 0
        send, encode = httpx.AsyncClient.send, Tokenizer.encode

        async def counted_send(client: httpx.AsyncClient, *args: Any, **kwargs: Any) -> Any:
            self.http += 1
            return await send(client, *args, **kwargs)

        def counted_encode(tokenizer: Tokenizer, text: str) -> list[int]:
            self.tokenised += 1
            return encode(tokenizer, text)

        httpx.AsyncClient.send = counted_send  # type: ignore[assignment, method-assign]
        Tokenizer.encode = counted_encode  # type: ignore[assignment, method-assign]

    def take(self) -> tuple[int, int]:
        """Both counts since the last call."""
        found = self.http, self.tokenised
        self.http = self.tokenised = 0
        return found


class PhloemRunner:
    """See `tally.Runner`. `decoder` is watched where the engine is in this process."""

    def __init__(self, backend: Any, about: dict[str, Any], decoder: WatchedDecoder | None) -> None:
        self.backend = backend
        self.latencies: list[float] = []
        self._about = about
        self._decoder = decoder
        self._calls = Calls()
        self._jobs: list[Any] = []
        self._tally = Tally()
        self._usage = Usage()
        if isinstance(backend, EmbeddedBackend):
            self._watch_jobs(backend)

    def info(self) -> dict[str, Any]:
        """See `Runner`."""
        return self._about

    def prepare(self, shape: str, shared: str) -> None:
        """See `Runner`."""
        self.program = program(phloem, shape, shared)
        self._shape = SHAPES[shape]
        assert not self.program.graph.opaque, self.program.graph.opaque

    def one(self, row: dict[str, Any]) -> Outputs:
        """See `Runner`."""
        return self._read(self.program.run(**row, temperature=0, backend=self.backend))

    def many(self, rows: list[dict[str, Any]], at_once: int) -> list[Outputs]:
        """See `Runner`."""
        states = self.program.run_batch(
            rows, num_threads=at_once, on_error="raise", temperature=0, backend=self.backend
        )
        return [self._read(state) for state in states]

    def tally(self) -> Tally:
        """See `Runner`. For the embedded engine with its passes and the optimum of prefill."""
        found, use = self._tally, self._usage
        found.prompt, found.reused, found.prefilled = use.prompt, use.reused, use.prefilled
        found.generated, found.forced, found.scored = use.generated, use.forced, use.scored
        found.drafted, found.accepted = use.drafted, use.accepted
        found.calls, found.tokenised = self._calls.take()
        if self._decoder is not None:
            passes, self._decoder.passes = self._decoder.passes, []
            found.passes = Counter(rows for rows, _ in passes)
            found.decoder_s = sum(seconds for _, seconds in passes)
            found.optimal_prefill = optimal_prefill(
                [(prompt, job.seq.tokens) for prompt, job in self._jobs]
            )
        self._jobs.clear()
        self._tally, self._usage = Tally(), Usage()
        return found

    def generate(self, prompts: list[list[int]], tokens: int) -> tuple[int, int]:
        """See `tally.TokenRunner`."""
        return asyncio.run(self._generate(prompts, tokens))

    async def _generate(self, prompts: list[list[int]], tokens: int) -> tuple[int, int]:
        fingerprint = self.backend.capabilities.fingerprint
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, stream=False)

        async def one(number: int) -> Usage:
            snapshot = Snapshot(fingerprint, tuple(prompts[number]))
            session = await self.backend.restore(snapshot, str(number))
            result = [item async for item in session.generate(params)][-1]
            await session.close()
            assert isinstance(result, StepResult)
            return result.usage

        usage = sum(await asyncio.gather(*map(one, range(len(prompts)))), Usage())
        return usage.generated, usage.reused

    def calibrate(self) -> dict[str, Any]:
        """What the decoder alone takes, now."""
        assert self._decoder is not None
        return calibrate(self._decoder.inner)

    def close(self) -> None:
        """Stop the engine."""
        asyncio.run(self.backend.aclose())

    def _read(self, state: Any) -> Outputs:
        outputs: Outputs = state.value
        for event in state.events:
            if isinstance(event, StepFinished) and event.kind == "gen":
                step = (event.name or "").rstrip("0123456789")
                self._tally.lengths.setdefault(step, []).append(event.usage.generated)
            elif isinstance(event, RunFinished):
                self.latencies.append(event.at)
        self._usage += state.usage
        return outputs

    def _watch_jobs(self, backend: EmbeddedBackend) -> None:
        engine = backend.engine
        submit = engine.submit

        def watched(job: Any) -> None:
            self._jobs.append((list(job.seq.tokens[: job.prompt]), job))
            submit(job)

        engine.submit = watched  # type: ignore[method-assign]


def embedded(model: str | LoadedModel, dtype: str, **settings: Any) -> PhloemRunner:
    """The embedded engine with weights in `dtype`."""
    if isinstance(model, str):
        model = load_model(model, dtype=dtype)
    decoder = WatchedDecoder(model.decoder)
    fields = {name: getattr(model, name) for name in type(model).__dataclass_fields__}
    watched = LoadedModel(**{**fields, "decoder": decoder})
    about = {"version": f"phloem {phloem.__version__}", "weights": model.dtype}
    return PhloemRunner(EmbeddedBackend(watched, **settings), about, decoder)


def over_sglang(url: str, tokenizer: str) -> PhloemRunner:
    """A running SGLang server."""
    backend = RuntimeEndpoint(url, tokenizer=tokenizer)
    about = {"version": f"phloem {phloem.__version__}", "weights": "bfloat16"}
    return PhloemRunner(backend, about, None)
