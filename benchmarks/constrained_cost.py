"""What a constrained token costs over a free one, on the real model.

    python benchmarks/constrained_cost.py [--batch 1 16] [--tokens 64] [--rounds 5]

Each round generates the same number of tokens in every way, in turn: free, under a regex that
allows any text (the tokens are the free ones: only masks come on top), under a JSON Schema
whose strings are long, and under one that is to be complete when the tokens run out (the default
of schemas), so that the way to its end is looked after. Times are per drawn token (forced ones are
not drawn, so they add to the others' time), the fastest round of each; guesses of next tokens are
off, and ends of sequence are not drawn. CPU time counts the whole process and suffers less where
the machine is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, StepResult, Text
from phloem.runtime.embedded import EmbeddedBackend

WAYS = {
    "free": None,
    "any text": Constraint("regex", r"[\s\S]*"),
    "json": Constraint(
        "json_schema", '{"type":"array","items":{"type":"string","minLength":400},"minItems":9}'
    ),
    "closed json": Constraint(
        "json_schema",
        '{"type":"array","items":{"type":"string"},"minItems":12}',
        finish="force",
    ),
}


async def step(
    backend: EmbeddedBackend, way: Constraint | None, number: int, tokens: int
) -> StepResult:
    """One session's step; the prompts differ, so that nothing but their beginning is shared."""
    session = await backend.open(f"s{number}")
    session.append([Text(f"{number}. A story about the sea and what lives in it:", heal=False)])
    params = SamplingParams(temperature=0.8, seed=number, max_tokens=tokens, ignore_eos=True)
    *_, result = [item async for item in session.generate(params, way)]
    assert isinstance(result, StepResult)
    return result


async def measure(
    backend: EmbeddedBackend, way: Constraint | None, batch: int, tokens: int
) -> tuple[float, float]:
    """Wall and CPU milliseconds per drawn token of one stream among `batch`."""
    wall, cpu = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*(step(backend, way, n, tokens) for n in range(batch)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    drawn = sum(result.usage.generated - result.usage.forced for result in results) / batch
    return 1e3 * wall / drawn, 1e3 * cpu / drawn


async def main() -> None:
    """Print a row per batch size and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    backend = EmbeddedBackend(drafts=False)
    try:
        for batch in options.batch:
            best: dict[str, tuple[float, float]] = {}
            for _ in range(options.rounds + 1):  # The first warms the prompts' KV up.
                for name, way in WAYS.items():
                    now = await measure(backend, way, batch, options.tokens)
                    old = best.get(name, now)
                    best[name] = (min(old[0], now[0]), min(old[1], now[1]))
            for name, (wall, cpu) in best.items():
                print(
                    f"batch {batch:2} {name:11} {wall:8.2f} ms wall ({wall / best['free'][0]:.3f})"
                    f" {cpu:8.2f} ms CPU ({cpu / best['free'][1]:.3f})"
                )
    finally:
        await backend.aclose()


if __name__ == "__main__":
    asyncio.run(main())
