"""How fast a backend is on this machine: tokens per second, latencies, and what its cache finds.

What lives here: `measure` and the `Measurement` it makes, for any backend that counts what it
reuses. What does not: choosing and loading a model, and printing (`server/cli/bench.py`).

Every part takes a few seconds at most: it is measured again, each time in a namespace of its own
so that nothing is cached, until its time is up; the median counts.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from phloem.programs.protocol import Backend, SamplingParams, Session, StepResult, Text, TokenEvent

__all__ = ["STREAMS", "CacheUse", "Decoding", "Measurement", "Percentiles", "measure"]

T = TypeVar("T")

STREAMS = (1, 8, 32)
PREFILL_TOKENS = 1000
DECODE_TOKENS = 48

PART_S = 3.0
"""A part is measured again while it has taken less than this."""

MOST_ROUNDS = 5

WORDS = "the answer to this question is in the second part of the handbook and not in the first "
TASK = "Say whether the message is about billing, delivery or returns, and answer politely. " * 3
MESSAGES = ("Where is my parcel?", "I was charged twice.", "The shoes are too small.", "Thanks!")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a set of times, in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """By the nearest rank. `seconds` must not be empty."""
        ordered = sorted(seconds)
        ranks = (min(int(p * len(ordered)), len(ordered) - 1) for p in (0.5, 0.95, 0.99))
        return cls(*(round(1e3 * ordered[rank], 2) for rank in ranks))


@dataclass(frozen=True, slots=True)
class Decoding:
    """`streams` greedy streams at once. `tok_s` are the tokens per second of all together while
    every one of them decodes; the times are those between two tokens of a stream, and from a
    stream's start to its first token."""

    streams: int
    tok_s: float
    inter_token_ms: Percentiles
    first_token_ms: Percentiles


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Prompt tokens of a workload that shares prefixes: all, those reused, and the most that any
    cache could reuse (counted anew, over all that was computed before)."""

    prompt: int
    reused: int
    reusable: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What `measure` found. `prefill_tok_s` is of one prompt of `prefill_tokens` tokens."""

    prefill_tokens: int
    prefill_tok_s: float
    decoding: tuple[Decoding, ...]
    cache: CacheUse


async def measure(backend: Backend, report: Callable[[str], None]) -> Measurement:
    """Take all measurements; `report` is told what is measured next.

    The backend should be idle, and its KV pool hold 4,096 tokens for 32 streams to run at once.
    """
    names = (f"measured {i}" for i in itertools.count())
    tokens = min(PREFILL_TOKENS, backend.capabilities.max_context // 2)
    prompt = WORDS * math.ceil(10 * tokens / backend.count(10 * WORDS))
    report(f"prefill of {tokens} tokens")
    await _decode(backend, 1, next(names))  # to warm up
    prefills = await _repeat(names, partial(_prefill, backend, prompt))
    decoding = []
    for streams in STREAMS:
        report(f"{streams} streams at once")
        decoding.append(_decoding(await _repeat(names, partial(_decode, backend, streams))))
    report("reuse of shared prefixes")
    return Measurement(
        prefill_tokens=prefills[0][0],
        prefill_tok_s=round(statistics.median(n / seconds for n, seconds in prefills), 1),
        decoding=tuple(decoding),
        cache=await _cache_use(backend, next(names)),
    )


async def _repeat(names: Iterator[str], measured: Callable[[str], Awaitable[T]]) -> list[T]:
    """What each round gives, under a name of its own, for as many rounds as the time allows."""
    found: list[T] = []
    began = time.perf_counter()
    while not found or (len(found) < MOST_ROUNDS and time.perf_counter() - began < PART_S):
        found.append(await measured(next(names)))
    return found


async def _prefill(backend: Backend, prompt: str, name: str) -> tuple[int, float]:
    """Tokens computed before the first one came, and the seconds until then."""
    session = await backend.open(name, namespace=name)
    session.append([Text(prompt, heal=False)])
    began = time.perf_counter()
    result = await _step(session, max_tokens=1)
    return result.usage.prefilled, time.perf_counter() - began


async def _step(session: Session, *, max_tokens: int) -> StepResult:
    """A greedy step, to its end."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    async for item in session.generate(params):
        if isinstance(item, StepResult):
            return item
    raise AssertionError("a step ends in a result")


@dataclass(frozen=True, slots=True)
class _Stream:
    """When one stream began, and its arrivals: instant and number of tokens."""

    began: float
    arrivals: list[tuple[float, int]]


async def _decode(backend: Backend, streams: int, name: str) -> list[_Stream]:
    """Short prompts, no two alike, decoded together."""

    async def stream(number: int) -> _Stream:
        session = await backend.open(f"{name}.{number}", namespace=f"{name}.{number}")
        session.append([Text(f"{number}. Once upon a time", heal=False)])
        params = SamplingParams(max_tokens=DECODE_TOKENS, temperature=0, ignore_eos=True)
        began = time.perf_counter()
        arrivals = [
            (time.perf_counter(), len(item.tokens))
            async for item in session.generate(params)
            if isinstance(item, TokenEvent) and item.tokens
        ]
        return _Stream(began, arrivals)

    return await asyncio.gather(*map(stream, range(streams)))


def _decoding(rounds: list[list[_Stream]]) -> Decoding:
    between, first = [], []
    for stream in itertools.chain(*rounds):
        first.append(stream.arrivals[0][0] - stream.began)
        for (before, _), (after, tokens) in itertools.pairwise(stream.arrivals):
            between += [(after - before) / tokens] * tokens
    return Decoding(
        streams=len(rounds[0]),
        tok_s=round(statistics.median(map(_rate, rounds)), 1),
        inter_token_ms=Percentiles.of(between),
        first_token_ms=Percentiles.of(first),
    )


def _rate(streams: list[_Stream]) -> float:
    """Tokens per second from when the last stream has its first token until the first one ends."""
    begin = max(stream.arrivals[0][0] for stream in streams)
    end = min(stream.arrivals[-1][0] for stream in streams)
    tokens = sum(n for stream in streams for at, n in stream.arrivals if begin < at <= end)
    return tokens / max(end - begin, 1e-9)


async def _cache_use(backend: Backend, namespace: str) -> CacheUse:
    """Four conversations of two turns that open with the same instructions, one after another."""
    prompt = reused = reusable = 0
    computed: dict[int, Any] = {}
    for number, message in enumerate(MESSAGES):
        session = await backend.open(f"{namespace}.{number}", namespace=namespace)
        session.append([Text(TASK, heal=False)])
        for turn in (message, "And what else?"):
            session.append([Text(f"\nQ: {turn}\nA:", heal=False)])
            result = await _step(session, max_tokens=8)
            tokens = (await session.snapshot()).tokens
            asked = tokens[: result.usage.prompt]
            prompt += result.usage.prompt
            reused += result.usage.reused
            # A prompt's last token is computed for its logits; an output's last one is not.
            reusable += min(_known(computed, asked), len(asked) - 1)
            _add(computed, tokens[: result.usage.prompt + result.usage.generated - 1])
        await session.close()
    return CacheUse(prompt, reused, reusable)


def _known(trie: dict[int, Any], tokens: Sequence[int]) -> int:
    """How many leading tokens the trie holds."""
    for at, token in enumerate(tokens):
        if token not in trie:
            return at
        trie = trie[token]
    return len(tokens)


def _add(trie: dict[int, Any], tokens: Sequence[int]) -> None:
    for token in tokens:
        trie = trie.setdefault(token, {})
