"""Checks of what a session is given, before any work is done.

What lives here: `check_params`, `check_hint` and `make_output_text`. What does not: their meaning
(`programs/protocol.py`).
"""

from __future__ import annotations

from numbers import Integral, Real

import regex

from phloem.errors import ConfigError
from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.output_text import OutputText
from phloem.runtime.rules import require
from phloem.surrogates import half_of_pair

__all__ = ["check_hint", "check_params", "make_output_text"]

_WHOLE = ("max_tokens", "min_tokens", "top_k", "seed", "logprobs")
_NUMBERS = (
    "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
_LISTS = {"stop": str, "stop_regex": str, "stop_token_ids": int}


def check_params(params: SamplingParams) -> None:
    """Raises `ConfigError` that names the parameter, and its kind or its range."""
    require(params, _kinds(params))
    rules = [
        ("max_tokens", params.max_tokens >= 0, "0 or more"),
        ("min_tokens", 0 <= params.min_tokens <= params.max_tokens, "from 0 to max_tokens"),
        ("temperature", 0 <= params.temperature < float("inf"), "0 or more"),
        ("top_p", 0 < params.top_p <= 1, "more than 0 and at most 1"),
        ("top_k", params.top_k == -1 or params.top_k > 0, "-1 (off) or more than 0"),
        ("min_p", 0 <= params.min_p <= 1, "from 0 to 1"),
        ("frequency_penalty", -2 <= params.frequency_penalty <= 2, "from -2 to 2"),
        ("presence_penalty", -2 <= params.presence_penalty <= 2, "from -2 to 2"),
        ("repetition_penalty", 0 < params.repetition_penalty <= 10, "more than 0, at most 10"),
        ("logprobs", params.logprobs is None or 0 <= params.logprobs <= 100, "from 0 to 100"),
        ("stop", all(params.stop), "texts of one character or more"),
        (
            "stop",
            not any(map(half_of_pair, params.stop)),
            "texts, no halves of surrogate pairs",
        ),
    ]
    require(params, rules)


def check_hint(next_use: int | None, place: str) -> None:
    """Raises `ConfigError` for what is no hint (`Session.hint`)."""
    steps = next_use is None or (_is_whole(next_use) and next_use >= 0)
    if not steps or not isinstance(place, str):
        raise ConfigError(
            f"hint({next_use!r}, {place!r}): give a number of steps or None, and a text",
            hint="change the hint",
            param="place" if steps else "next_use",
        )


def _kinds(params: SamplingParams) -> list[tuple[str, bool, str]]:
    """The rules of what kind each parameter is. A row that can't be computed with would be found
    in the middle of a pass, which others share."""
    rules = []
    for name in _WHOLE:
        value = getattr(params, name)
        unset = value is None and name in ("seed", "logprobs")
        rules.append((name, unset or _is_whole(value), "a whole number"))
    for name in _NUMBERS:
        value = getattr(params, name)
        holds = isinstance(value, Real) and not isinstance(value, bool)
        rules.append((name, holds, "a number"))
    for name, kind in _LISTS.items():
        value = getattr(params, name)
        holds = isinstance(value, tuple) and all(isinstance(item, kind) for item in value)
        rules.append((name, holds, "a tuple of " + ("texts" if kind is str else "token ids")))
    return rules


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def make_output_text(params: SamplingParams) -> OutputText:
    """The text of a new generation with the stops of `params`.

    Raises `ConfigError` for a stop pattern that does not parse.
    """
    patterns = []
    for pattern in params.stop_regex:
        try:
            patterns.append(regex.compile(pattern))
        except regex.error as error:
            raise ConfigError(
                f"stop_regex {pattern!r} is no valid pattern: {error}",
                hint="mend the pattern",
                param="stop_regex",
            ) from error
    return OutputText(tuple(stop.encode() for stop in params.stop), tuple(patterns))
