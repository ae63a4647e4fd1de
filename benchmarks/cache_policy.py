"""How much of what can be reused the prefix cache reuses, on traces in the shapes of programs.

    python benchmarks/cache_policy.py [--seeds N] [--model] [--json]

Each trace is replayed on the engine's own radix cache and page counts, without a model: with an
unbounded pool, and with pools of 50% and 25% of the trace's distinct tokens ("distinct") and of
its working set ("live": the most tokens at any time that were computed and will be used again).
Given are the tokens reused as a share of the most that any cache of so many tokens can reuse
that must hold the running step (`traces.best_hits`, Belady's rule with the whole trace known), for
the policies `program` and `lru`; and, where strangers decide what comes, for `told`: the same cache
that knows the chances from which the trace was drawn, as nobody can (`told.py`). There the reuse is
also given as a share of the most that caches can expect that don't see the future (`bounds.py`,
`chat_bound.py`), over all traces, in pools whose size is taken from other traces: their own would
tell of them. For few-shot the bound is for caches that aren't told which text is the popular one,
so `told` may exceed it.
`--model` adds what the bookkeeping costs beside the default model on prompts without anything to
reuse (`--seeds 0 --model`: that alone).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.bounds import few_shot_bound, learned  # noqa: E402
from benchmarks.chat_bound import chat_bound, chat_price  # noqa: E402
from benchmarks.told import Told  # noqa: E402
from benchmarks.traces import (  # noqa: E402
    FEW_SHOT_CHANCES,
    SHAPES,
    Step,
    best_hits,
    footprint,
    reusable,
    working_set,
)
from phloem.programs.protocol import SamplingParams, Text  # noqa: E402
from phloem.runtime.embedded import EmbeddedBackend  # noqa: E402
from phloem.runtime.engine.forecast import Interest  # noqa: E402
from phloem.runtime.engine.kv_pool import KVPool  # noqa: E402
from phloem.runtime.engine.radix_cache import RadixCache  # noqa: E402
from phloem.runtime.engine.sequence import Sequence as TokenSequence  # noqa: E402
from phloem.runtime.engine.sequence_kv import SequenceKV  # noqa: E402
from phloem.runtime.engine.state import EngineState  # noqa: E402
from phloem.runtime.model.batch import KVStorage  # noqa: E402

PAGE = 16
RUNS = {"tree of thought": 30, "multi-chain": 60, "ReAct": 100, "few-shot": 600, "chat": 150}
SHARES = (0.5, 0.25)
POLICIES = {"program": {}, "lru": {"hints": False}, "told": {"told": True}}
OTHERS = range(1000, 1005)
"""Seeds of the traces from which the size of a pool is taken."""


class Replay:
    """The cache of an engine whose decoder computes everything at once, on a virtual clock."""

    def __init__(
        self, pages: int, *, hints: bool = True, told: bool = False, page_size: int = PAGE
    ) -> None:
        self.now = 0.0
        self.pool = KVPool(KVStorage([], [], page_size), pages)
        self.cache = RadixCache(self.pool, hints=hints, clock=lambda: self.now)
        self.kv = SequenceKV(self.pool, self.cache)
        self._told = Told(lambda: self.now) if told else None
        if self._told is not None:
            self.cache.forecast = self._told
        self._interests: dict[str, Interest] = {}

    def run(self, steps: Sequence[Step]) -> int:
        """Replay the steps; returns the prompt tokens reused."""
        return sum(map(self.step, steps))

    def step(self, step: Step) -> int:
        """One step, as the scheduler takes it."""
        self.now = step.at
        interest = self._interests.setdefault(step.session, Interest())
        self.cache.resume(interest)
        seq = TokenSequence("", list(step.prompt), len(step.prompt) - 1)
        found = self.kv.attach(seq)
        interest.queued = False
        self.cache.begin(interest, found, seq.tokens)
        reused = seq.computed
        seq.tokens += step.output
        computed = len(seq.tokens) - 1
        assert self.kv.grow(seq, computed), "a step does not fit the pool"
        seq.computed = computed
        self.kv.publish(seq)
        self.cache.settle(interest, self.kv.detach(seq))
        if self._told is not None:
            self._told.tell(step, interest)
        self.cache.expect(interest, step.next_use, step.node)
        if step.closes:
            self.cache.expect(self._interests.pop(step.session), None)
        return reused


def pages_for(tokens: int) -> int:
    """Pages that hold so many tokens, none of them in part."""
    return -(-tokens // PAGE)


def compare(steps: Sequence[Step], tokens: int) -> dict[str, float]:
    """With a pool of `tokens`, the share of the bound that is reused, by policy."""
    bound = best_hits(steps, tokens)
    strangers = any(step.rate for step in steps)
    return {
        name: reuse(steps, tokens, name) / bound for name in POLICIES if strangers or name != "told"
    }


def reuse(steps: Sequence[Step], tokens: int, policy: str) -> int:
    """Tokens reused with a pool of `tokens`."""
    return Replay(pages_for(tokens), **POLICIES[policy]).run(steps)


def unbounded(steps: Sequence[Step]) -> float:
    """With room for everything, the share of what can be reused that is."""
    pages = sum(pages_for(len(step.prompt) + len(step.output)) for step in steps)
    return Replay(pages).run(steps) / reusable(steps)


def row(traces: Sequence[Sequence[Step]]) -> dict[str, float]:
    """The means over traces of one shape."""
    found = {"unbounded": [unbounded(trace) for trace in traces]}
    for trace in traces:
        for name, size in (("distinct", footprint(trace)), ("live", working_set(trace))):
            for share in SHARES:
                for policy, value in compare(trace, int(size * share)).items():
                    found.setdefault(f"{share:.0%} of {name}, {policy}", []).append(value)
    return {name: statistics.mean(values) for name, values in found.items()}


def without_the_future(shape: str, seeds: int) -> dict[str, float]:
    """Reuse over all traces as a share of the bound for caches that don't see the future; empty for
    shapes whose programs tell what comes, and so do not leave it to chance."""
    make, runs = SHAPES[shape], RUNS[shape]
    others = [make(seed, runs) for seed in OTHERS]
    if not others[0][0].rate:
        return {}
    traces = [make(seed, runs) for seed in range(seeds)]
    live = statistics.mean(map(working_set, others))
    talks = shape == "chat"
    chances = [] if talks else [learned(trace, FEW_SHOT_CHANCES) for trace in traces]
    found = {}
    for share in SHARES:
        tokens = PAGE * pages_for(int(share * live))
        if talks:
            price = chat_price(others, tokens, PAGE)
            bound = sum(chat_bound(trace, tokens, price, PAGE) for trace in traces)
        else:
            bound = sum(
                few_shot_bound(trace, tokens, known)
                for trace, known in zip(traces, chances, strict=True)
            )
        for policy in POLICIES:
            reused = sum(reuse(trace, tokens, policy) for trace in traces)
            found[f"{share:.0%} of live, {policy}, without the future"] = reused / bound
        known = sum(best_hits(trace, tokens) for trace in traces)
        found[f"{share:.0%} of live, Belady, over the same bound"] = known / bound
    return found


BOOKKEEPING = {
    "kv": ("attach", "grow", "publish", "detach", "pages_needed", "cached_prefix"),
    "cache": ("begin", "resume", "settle", "expect"),
}
"""Everything that the scheduler asks of the cache and the pool."""


BOOKKEEPING_GOAL = 0.003


async def bookkeeping(rounds: int = 5, runs: int = 4) -> list[float]:
    """The engine thread's CPU time in the cache's bookkeeping, as a share of the time that passes,
    in each round. Nothing can be reused: `runs` different prompts of about 400 tokens, 32 tokens
    each, one after the other."""
    backend = EmbeddedBackend(kv_tokens=2048, drafts=False)
    await backend.start()
    spent = 0.0
    depth = 0

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal spent, depth
            depth += 1
            began = time.thread_time()
            try:
                return method(*given, **named)
            finally:
                depth -= 1
                if not depth:  # a method that another one called counts once
                    spent += time.thread_time() - began

        return call

    def wrap(state: EngineState) -> None:
        for part, names in BOOKKEEPING.items():
            for name in names:
                setattr(getattr(state, part), name, timed(getattr(getattr(state, part), name)))

    async def run(i: int) -> None:
        session = await backend.open(str(i))
        session.append([Text(f"{i * 7919} {i} " * 60)])
        async for _ in session.generate(SamplingParams(max_tokens=32, temperature=0)):
            pass
        session.hint(None)
        await session.close()

    await run(99)
    backend.engine.call(wrap).result()
    shares = []
    for number in range(rounds):
        spent, began = 0.0, time.perf_counter()
        for i in range(number * runs, (number + 1) * runs):
            await run(i)
        shares.append(spent / (time.perf_counter() - began))
    await backend.aclose()
    return shares


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="traces of each shape")
    parser.add_argument("--model", action="store_true", help="measure beside the default model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    report: dict[str, Any] = {
        shape: row([make(seed, RUNS[shape]) for seed in range(asked.seeds)])
        | without_the_future(shape, asked.seeds)
        for shape, make in SHAPES.items()
        if asked.seeds
    }
    shares = asyncio.run(bookkeeping()) if asked.model else []
    if asked.json:
        print(json.dumps({**report, "bookkeeping": shares}))
        return
    for shape, values in report.items():
        print(shape)
        for name, value in values.items():
            print(f"    {name:44}{value:.4f}")
    if shares:
        share = statistics.median(shares)
        print(
            f"bookkeeping: {share:.3%} of run time, rounds {min(shares):.3%} to {max(shares):.3%}; "
            f"goal under {BOOKKEEPING_GOAL:.1%}: {'met' if share < BOOKKEEPING_GOAL else 'not met'}"
        )


if __name__ == "__main__":
    main()
