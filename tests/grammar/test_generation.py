"""The real model writes JSON for real-world schemas: what is completed validates."""

import asyncio
import json
from collections import Counter

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from phloem.errors import ConstraintError
from phloem.programs.protocol import SamplingParams, Text
from phloem.runtime.embedded import EmbeddedBackend

pytestmark = pytest.mark.model

ENDED = ("stop", "forced")


async def _write(backend, build, case, seed):
    """The step's result under the case's schema; None where the schema is refused."""
    try:
        constraint = build(schema=case["schema"], finish="force")
    except ConstraintError:
        return None
    chat = backend.chat
    session = await backend.open(case["id"])
    about = json.dumps(case["schema"])[:300]
    session.append([*chat.prefix["user"], Text(f"Write a JSON document. Its schema: {about}")])
    session.append([*chat.suffix["user"], *chat.prefix["assistant"]])
    asked = SamplingParams(temperature=0.8, seed=seed, max_tokens=256)
    return [item async for item in session.generate(asked, constraint)][-1]


def _errors(schema, text):
    """What a validator of the schema's own dialect says against the text."""
    checker = validator_for(schema, default=Draft202012Validator)(schema)
    return [error.message for error in checker.iter_errors(json.loads(text))]


@pytest.mark.parametrize(
    ("count", "ended"),
    [(15, 15), pytest.param(150, 145, marks=pytest.mark.slow)],
)
async def test_what_the_model_completes_validates(build, shared, count, ended):
    """Of real-world schemas taken evenly, no completed text is invalid, and most are completed."""
    paths = sorted(shared.glob("schemas/dev/*"))
    cases = [json.loads(paths[i * len(paths) // count].read_text()) for i in range(count)]
    backend = EmbeddedBackend()
    try:
        results = await asyncio.gather(
            *(_write(backend, build, case, seed) for seed, case in enumerate(cases))
        )
    finally:
        await backend.aclose()
    written = [(case, done) for case, done in zip(cases, results, strict=True) if done]
    wrong = {
        case["id"]: (done.text, found)
        for case, done in written
        if done.finish_reason in ENDED and (found := _errors(case["schema"], done.text))
    }
    reasons = Counter(done.finish_reason for _, done in written)
    tokens = sum(done.usage.generated for _, done in written)
    forced = sum(done.usage.forced for _, done in written)
    cut = [case["id"] for case, done in written if done.finish_reason not in ENDED]
    print(f"{len(written)} of {count} schemas taken: {dict(reasons)}, cut: {cut}")
    mask_s = sum(done.timing.mask_ms for _, done in written) / 1e3
    print(
        f"{tokens} tokens, {forced} of them forced ({forced / tokens:.1%}), grammar {mask_s:.1f} s"
    )
    assert not wrong
    assert sum(reasons[reason] for reason in ENDED) >= ended
