"""The examples run on the real model, from the command line, as `make demo` runs them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.server.cli.conftest import Command, Done

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
QUESTION = "Which browsers are supported?"
VERDICT = r"(yes|no), because [a-z ,]{10,60}\."

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def handbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the handbook's index is kept for the tests of this module."""
    return tmp_path_factory.mktemp("handbook")


@pytest.fixture
def run(phloem: Command, handbook: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs an example with a trace, greedily, the handbook indexed before."""
    monkeypatch.setenv("PHLOEM_INDEX_DIR", str(handbook))
    assert phloem("index", "add", EXAMPLES / "handbook", "--index", "handbook").code == 0

    def traced(*words: str) -> Done:
        return phloem("run", *words, "--temperature", "0", "--trace")

    return traced


def steps(table: str) -> dict[str, tuple[int, int]]:
    """(prompt, reused) of each gen and select row of a printed trace."""
    found = re.findall(r"^(?:gen|select) (\w+) +\d+ +(\d+) +(\d+) ", table, re.MULTILINE)
    return {name: (int(prompt), int(reused)) for name, prompt, reused in found}


def shown(out: str) -> dict[str, str]:
    """The text of each step, by its name."""
    return dict(re.findall(r"^(\w+): (.*)$", out, re.MULTILINE))


@pytest.mark.parametrize(
    ("example", "argument", "names"),
    [
        ("support_agent.py", "--question", ("intent", "answer")),
        ("multi_step_rag.py", "--user-query", ("classify_intent", "answer_with_docs")),
    ],
)
def test_the_five_steps_keep_their_promises(
    run: Command, example: str, argument: str, names: tuple[str, str]
) -> None:
    """Intent, passages, JSON answer, regex verdict and closing come out in their forms, and
    each step reuses all that the one before it left."""
    intent, answer = names
    done = run(str(EXAMPLES / example), argument, QUESTION)
    assert (done.code, done.err) == (0, "")
    texts = shown(done.out)
    assert texts[intent] == "query_knowledge"
    value = json.loads(texts[answer])
    assert set(value) == {"answer", "sources", "confidence"}
    assert re.fullmatch(VERDICT, texts["verdict"])
    assert texts["closing"]
    counts = steps(done.out)
    assert list(counts) == [intent, answer, "verdict", "closing"]
    for (before, _), (_, reused) in itertools.pairwise(counts.values()):
        assert reused >= before - 1


def test_both_styles_give_the_same_answer(run: Command) -> None:
    """The state-style and the value-style agent are the same program."""
    state = run(str(EXAMPLES / "support_agent.py"), "--question", QUESTION)
    value = run(str(EXAMPLES / "multi_step_rag.py"), "--user-query", QUESTION)
    assert shown(state.out)["answer"] == shown(value.out)["answer_with_docs"]
    assert shown(state.out)["verdict"] == shown(value.out)["verdict"]


def test_a_repeated_run_reuses_every_prompt_token_but_the_last(run: Command) -> None:
    """The same question again finds the whole prompt of each generation in the cache."""
    words = (str(EXAMPLES / "support_agent.py"), "--question", QUESTION)
    run(*words)
    counts = steps(run(*words).out)
    for name in ("answer", "verdict", "closing"):
        prompt, reused = counts[name]
        assert prompt - reused <= 2, f"{name}: {reused} of {prompt}"
