"""How `select` picks one of its choices from their token log-probabilities.

What lives here: the four decision rules. What does not: scoring (the engine's) and sampling
with a temperature (`executor/steps.py`). Each rule gives every choice a score, higher is better,
and the first of equals wins; all scores are reported with the result.

Notation: choice c has tokens t1..tn with log p(ti | prompt, t<i) as the engine scored them.

* `likelihood` (the default): the sum, log p(c | prompt): how probable it is that the model
  writes exactly this. It prefers the shorter of two choices where one begins the other.
* `token_length_normalized`: the mean. Long choices with a predictable tail profit, so a rare
  word of many pieces can beat a common one: kept for programs written for SGLang.
* `greedy_token_selection`: compare the first tokens, keep the best, go on with the second, and
  so on. A choice that has ended is compared by its mean.
* `unconditional_likelihood_normalized`: the mean of log p(ti | prompt) - log p(ti | nothing):
  how much the prompt speaks for the choice (the "domain-conditional PMI" of Holtzman et al.,
  "Surface Form Competition", 2021). The first token has no unconditional value and counts 0.

The last three have the names and the rules of SGLang's choice methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from phloem.programs.protocol import ScoredChoice

__all__ = [
    "DEFAULT",
    "ChoicesMethod",
    "Decision",
    "greedy_token_selection",
    "likelihood",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
]


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner's index, every choice's score, and a rule's own numbers for the meta data."""

    index: int
    scores: tuple[float, ...]
    extra: dict[str, Any]


@runtime_checkable
class ChoicesMethod(Protocol):
    """A decision rule. `needs_unconditional` asks the engine for scores without the prompt."""

    name: str
    needs_unconditional: bool

    def decide(self, choices: Sequence[ScoredChoice]) -> Decision:
        """Pick one of `choices` (at least one)."""
        ...


def _mean(values: Sequence[float]) -> float:
    # A choice without tokens of its own adds nothing: probability 1.
    return sum(values) / len(values) if values else 0.0


def _best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda index: scores[index])


class _Likelihood:
    """The best sum of log-probabilities: how probable it is that the model writes the choice."""

    name = "likelihood"
    needs_unconditional = False

    def decide(self, choices: Sequence[ScoredChoice]) -> Decision:
        scores = tuple(sum(choice.logprobs) for choice in choices)
        return Decision(_best(scores), scores, {})


class _TokenLengthNormalized:
    """The best mean of the tokens' log-probabilities: SGLang's default."""

    name = "token_length_normalized"
    needs_unconditional = False

    def decide(self, choices: Sequence[ScoredChoice]) -> Decision:
        scores = tuple(_mean(choice.logprobs) for choice in choices)
        return Decision(_best(scores), scores, {})


class _GreedyTokenSelection:
    """Token by token: those with the best first token, of these the best second, and so on."""

    name = "greedy_token_selection"
    needs_unconditional = False

    def decide(self, choices: Sequence[ScoredChoice]) -> Decision:
        means = tuple(_mean(choice.logprobs) for choice in choices)
        width = max(len(choice.logprobs) for choice in choices)
        matrix = [
            [*choice.logprobs, *([mean] * (width - len(choice.logprobs)))]
            for choice, mean in zip(choices, means, strict=True)
        ]
        left = list(range(len(choices)))
        for column in range(width):
            best = max(matrix[index][column] for index in left)
            left = [index for index in left if matrix[index][column] == best]
        return Decision(left[0], means, {"greedy_logprob_matrix": matrix})


class _UnconditionalLikelihoodNormalized:
    """The best mean gain of the tokens over what they score without the prompt."""

    name = "unconditional_likelihood_normalized"
    needs_unconditional = True

    def decide(self, choices: Sequence[ScoredChoice]) -> Decision:
        scores = []
        for choice in choices:
            pairs = zip(choice.logprobs, choice.unconditional, strict=True)
            scores.append(_mean([given - (alone or 0.0) for given, alone in pairs]))
        alone_means = [_mean([u or 0.0 for u in choice.unconditional]) for choice in choices]
        extra = {"normalized_unconditional_prompt_logprobs": alone_means}
        return Decision(_best(scores), tuple(scores), extra)


likelihood: ChoicesMethod = _Likelihood()
token_length_normalized: ChoicesMethod = _TokenLengthNormalized()
greedy_token_selection: ChoicesMethod = _GreedyTokenSelection()
unconditional_likelihood_normalized: ChoicesMethod = _UnconditionalLikelihoodNormalized()

DEFAULT = likelihood
