"""The engines that the conformance suite holds to the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Backend, SamplingParams
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model

REGEX = Constraint("regex", "(cat|dog) [0-9]{3}")


def scripted(prompt: str, params: SamplingParams, constraint: Constraint | None) -> str:
    """Any text, but one of the suite's own constraint."""
    if constraint is not None:
        return "cat 123"
    kept = sum(map(ord, prompt)) + (params.seed or 0) * (params.temperature > 0)
    return "".join(chr(97 + (kept * (i + 1)) % 26) for i in range(params.max_tokens + 1))


@pytest_asyncio.fixture(params=["scripted", "embedded"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Each engine in turn; an engine room may add its own to `params`."""
    made: Backend
    made = (
        ScriptedBackend(scripted) if request.param == "scripted" else EmbeddedBackend(tiny_model())
    )
    yield made
    await made.aclose()
