"""The engines that the conformance suite holds to the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Backend, SamplingParams
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint
from tests.runtime.remote.tapped import Tap, tapped
from tests.sglang_server import tokenizer

REGEX = Constraint("regex", "(cat|dog) [0-9]{3}")


def scripted(prompt: str, params: SamplingParams, constraint: Constraint | None) -> str:
    """Any text, but one of the suite's own constraint."""
    if constraint is not None:
        return "cat 123"
    kept = sum(map(ord, prompt)) + (params.seed or 0) * (params.temperature > 0)
    return "".join(chr(97 + (kept * (i + 1)) % 26) for i in range(params.max_tokens + 1))


@pytest.fixture(scope="session")
def phloem_server() -> Iterator[Tap]:
    """phloem's own server, which speaks SGLang's API, over the tiny model."""
    with tapped() as server:
        yield server


@pytest.fixture(scope="session")
def hosted() -> Iterator[HostedBackend]:
    """The tiny model in one child process for all tests: starting it takes seconds."""
    made = HostedBackend(Loader("phloem.runtime.model.tiny:tiny_model"))
    yield made
    made.supervisor.close()


def make(name: str, request: pytest.FixtureRequest) -> Backend:
    """The engine called `name`."""
    if name == "scripted":
        return ScriptedBackend(scripted)
    if name == "embedded":
        return EmbeddedBackend(tiny_model())
    if name == "hosted":
        return request.getfixturevalue("hosted")
    if name == "phloem-server":
        server = request.getfixturevalue("phloem_server")
        return RuntimeEndpoint(server.url, tokenizer=server.model)
    return RuntimeEndpoint(request.getfixturevalue("sglang_url"), tokenizer=tokenizer())


@pytest_asyncio.fixture(
    params=[
        "scripted",
        "embedded",
        "hosted",
        "phloem-server",
        pytest.param("sglang", marks=pytest.mark.sglang),
    ]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Each engine in turn; an engine room may add its own to `params`."""
    made = make(request.param, request)
    yield made
    if request.param != "hosted":
        await made.aclose()
