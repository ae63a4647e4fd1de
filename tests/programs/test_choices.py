"""How choices are decided, and what is reported of the decision."""

from __future__ import annotations

import math
from collections import Counter

import pytest

import phloem as ph
from phloem.programs.protocol import ScoredChoice
from phloem.programs.testing import ScriptedBackend

METHODS = [
    ph.likelihood,
    ph.token_length_normalized,
    ph.greedy_token_selection,
    ph.unconditional_likelihood_normalized,
]


def scored(*rows: list[float], unconditional: list[list[float | None]] | None = None):
    return [
        ScoredChoice(
            str(index),
            tuple(range(len(row))),
            tuple(row),
            tuple(unconditional[index]) if unconditional else tuple([None] * len(row)),
        )
        for index, row in enumerate(rows)
    ]


def test_likelihood_sums() -> None:
    """The default picks the choice that the model most probably writes, word for word."""
    decision = ph.likelihood.decide(scored([-1.0], [-0.9, -0.9], [-3.0]))
    assert decision.index == 0
    assert decision.scores == (-1.0, -1.8, -3.0)


def test_token_length_normalized_means() -> None:
    """SGLang's default compares means, so a long predictable tail wins."""
    decision = ph.token_length_normalized.decide(scored([-3.0], [-8.0, -0.1, -0.1]))
    assert decision.index == 1
    assert decision.scores[1] == pytest.approx(-8.2 / 3)


def test_greedy_selects_token_by_token() -> None:
    """Greedy keeps the best at each token; a choice that has ended stands with its mean."""
    rows = scored([-1.0, -5.0], [-1.0, -0.5], [-2.0, 0.0], [-1.0])
    decision = ph.greedy_token_selection.decide(rows)
    assert decision.index == 1
    assert decision.extra["greedy_logprob_matrix"][3] == [-1.0, -1.0]


def test_unconditional_normalisation() -> None:
    """The prompt's support counts, not the choice's own frequency; no first value counts 0."""
    rows = scored([-2.0, -1.0], [-2.0, -1.5], unconditional=[[None, -1.0], [None, -4.0]])
    decision = ph.unconditional_likelihood_normalized.decide(rows)
    assert decision.index == 1
    assert decision.scores == (pytest.approx(-1.0), pytest.approx(0.25))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_first_of_equals_wins(method: ph.programs.choices.ChoicesMethod) -> None:
    """Equal scores give the first choice."""
    rows = scored([-1.0], [-1.0], unconditional=[[None], [None]])
    assert method.decide(rows).index == 0


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_result_is_exactly_a_choice(method, temperature: float) -> None:
    """Choices are texts, never patterns, and the variable is the text appended (ch-01)."""
    choices = ["Dr. Lee", "a|b", "(x)", "C:\\n", "50%", "日本"]

    @ph.function
    def program(s):
        s += "Who? " + ph.select("x", choices, temperature, method)

    for seed in range(1, 21):
        state = program.run(backend=ScriptedBackend(), seed=seed)
        assert state["x"] in choices
        assert state.text() == "Who? " + state["x"]


def test_temperature_samples_by_score() -> None:
    """A temperature draws by softmax of the scores, the same for the same seed."""
    scores = {"a": math.log(0.7), "b": math.log(0.2), "c": math.log(0.1)}

    @ph.function
    def program(s):
        s += ph.gen("x", choices=["a", "b", "c"], temperature=1.0)

    def draw(seed: int) -> str:
        return program.run(backend=ScriptedBackend(scores=scores), seed=seed)["x"]

    drawn = Counter(draw(seed) for seed in range(400))
    assert drawn["a"] > drawn["b"] > drawn["c"] > 0
    assert [draw(seed) for seed in range(5)] == [draw(seed) for seed in range(5)]


def test_scores_are_reported() -> None:
    """Every choice's score and token log-probabilities are in the meta data, with the choices that
    they belong to: one that is given twice is scored once."""

    @ph.function
    def program(s):
        choices = ["ab", "ab", "c"]
        s += ph.select("x", choices, choices_method=ph.unconditional_likelihood_normalized)
        return s.get_meta_info("x")

    meta = program.run(backend=ScriptedBackend(scores={"ab": -2, "c": -3})).value
    assert meta["choice"] in {"ab", "c"}
    assert meta["choices"] == ["ab", "c"]
    assert meta["normalized_prompt_logprobs"] == [-1.0, -3.0]
    assert [len(row) for row in meta["input_token_logprobs"]] == [2, 1]
    assert len(meta["normalized_unconditional_prompt_logprobs"]) == 2
    assert len(meta["scores"]) == 2
