"""What `get_meta_info(name)` returns, under the names that SGLang uses.

What lives here: the dicts for generated and for chosen variables, plain JSON. What does not:
where they are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.programs.choices import Decision
from phloem.programs.protocol import ScoredChoice, ScoreResult, StepResult, Timing, Usage

__all__ = ["of_choice", "of_result"]


def of_result(result: StepResult) -> dict[str, Any]:
    """Meta data of one generated sample. Log-probabilities are (logprob, id, text)."""
    found: dict[str, Any] = {
        "prompt_tokens": result.usage.prompt,
        "completion_tokens": result.usage.generated,
        "cached_tokens": result.usage.reused,
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "seed": result.seed,
        "usage": _flat(result.usage),
        "timing": _flat(result.timing),
    }
    if result.logprobs:
        found["output_token_logprobs"] = [(t.logprob, t.token, t.text) for t in result.logprobs]
        found["output_top_logprobs"] = [
            [(logprob, token, text) for token, text, logprob in t.top] for t in result.logprobs
        ]
    return found


def of_choice(
    choices: Sequence[str], index: int, decision: Decision, scored: ScoreResult
) -> dict[str, Any]:
    """Meta data of a choice: the winner, the choices (one that was given twice is one), and for
    each of them its score and token log-probabilities, as [logprob, id, text], the text None where
    the engine does not tell."""
    means = [
        sum(choice.logprobs) / len(choice.logprobs) if choice.logprobs else 0.0
        for choice in scored.choices
    ]
    return {
        "choice": choices[index],
        "choices": list(choices),
        "scores": list(decision.scores),
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": [_triples(choice) for choice in scored.choices],
        "greedy_prefix": [choice.greedy_prefix for choice in scored.choices],
        "usage": _flat(scored.usage),
        "timing": _flat(scored.timing),
        **decision.extra,
    }


def _triples(choice: ScoredChoice) -> list[list[Any]]:
    texts = choice.pieces or (None,) * len(choice.tokens)
    return [list(item) for item in zip(choice.logprobs, choice.tokens, texts, strict=True)]


def _flat(counts: Usage | Timing) -> dict[str, Any]:
    # dataclasses.asdict copies deeply, which costs more than all the rest of a step.
    return {name: getattr(counts, name) for name in counts.__slots__}
