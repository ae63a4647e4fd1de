"""Checks of sampling parameters, before any work is done.

What lives here: `check_params` and `make_output_text`. What does not: their meaning
(`programs/protocol.py`).
"""

from __future__ import annotations

import regex

from phloem.errors import ConfigError
from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.output_text import OutputText

__all__ = ["check_params", "make_output_text"]


def check_params(params: SamplingParams) -> None:
    """Raises `ConfigError` that names the parameter and its range."""
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
    ]
    for name, holds, allowed in rules:
        if not holds:
            value = getattr(params, name)
            raise ConfigError(
                f"{name} is {value!r}; it must be {allowed}",
                hint=f"change {name}",
                param=name,
            )


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
