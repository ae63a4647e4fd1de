"""Whole programs over SGLang's API, through the public face."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import phloem as ph
from phloem.errors import EngineError
from phloem.programs.executor.loop import call

from .canned import reply
from .tapped import Tap, tapped
from .threaded import answering


@pytest.fixture(scope="module")
def server() -> Iterator[Tap]:
    """One server for the module."""
    with tapped() as fake:
        yield fake


@ph.function
def talk(s):
    s += ph.user("Is grass green?")
    s += ph.assistant(ph.select("verdict", ["yes", "no"]))
    forks = s.fork(2)
    for fork in forks:
        fork += ph.user("Why?")
        fork += ph.assistant(ph.gen("why", max_tokens=6, ignore_eos=True))
    s += ph.user("A number?")
    s += ph.assistant(ph.gen("number", regex="[0-9]{3}", max_tokens=20))
    return [fork["why"] for fork in forks]


def test_a_program_runs_over_the_api(server: Tap) -> None:
    """Roles, a select, forks and a regex give values, and the same seed the same run."""
    backend = ph.RuntimeEndpoint(server.url, tokenizer=server.model)
    runs = [talk.run(backend=backend, seed=3) for _ in range(2)]
    call(backend.aclose())
    assert runs[0]["verdict"] in {"yes", "no"}
    assert len(runs[0]["number"]) == 3
    assert runs[0].value == runs[1].value
    assert runs[0].value[0] != runs[0].value[1]


def test_the_programs_error_is_the_servers() -> None:
    """A refusal of the server is what `run()` raises, with status, body and the step's place."""
    body = json.dumps({"error": {"message": "no room"}})
    with answering({"/generate": reply(400, body)}) as url, tapped() as fake:
        backend = ph.RuntimeEndpoint(url, tokenizer=fake.model)
        with pytest.raises(EngineError, match=r"400.*no room") as caught:
            talk.run(backend=backend)
        call(backend.aclose())
        assert caught.value.where is not None
        assert caught.value.where.program == "talk"
