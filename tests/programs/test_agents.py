"""The agents among the examples, on the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import phloem as ph
from phloem.errors import BudgetExceeded
from phloem.programs import registry
from phloem.programs.dev import load_program
from phloem.programs.executor import loop
from phloem.runtime.embedded import EmbeddedBackend

pytestmark = pytest.mark.model
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    backend = EmbeddedBackend()
    registry.set_default("backend", backend)
    yield
    registry.reset("backend")
    loop.call(backend.aclose())


def test_react_calls_tools_that_exist() -> None:
    """Every call of the agent names one of its tools, and the run ends with an answer."""
    program = load_program(EXAMPLES / "react_agent.py", "react")
    state = program.run("What is 17 times 23?", temperature=0, record=True)
    entries = [e for e in state.record()["entries"][""] if e["name"] == "call"]
    calls = [json.loads(entry["outcome"][0]["text"]) for entry in entries]
    assert calls
    assert all(call["name"] in {"multiply", "add", "finish"} for call in calls)
    assert isinstance(state.value, str | int)
    assert program.replay(json.loads(json.dumps(state.record()))).value == state.value


def test_plan_execute_reflect() -> None:
    """The plan's parts are written in branches, and the loop ends by verdict or bound."""
    program = load_program(EXAMPLES / "plan_execute_reflect.py", "plan_execute_reflect")
    state = program.run("Describe a good cup of tea.", temperature=0)
    assert len(state["part"]) == 3
    assert state["verdict"] in {"yes", "no"}
    assert state.value == " ".join(state["part"])


def test_budget_ends_an_agent() -> None:
    """A token budget stops an agent wherever it is."""
    program: ph.Program = load_program(EXAMPLES / "react_agent.py", "react")
    with pytest.raises(BudgetExceeded):
        program.run("What is 17 times 23?", temperature=0, token_budget=20)
