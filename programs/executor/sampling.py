"""Sampling arguments: their names, their aliases, and how a step's join the run's.

What lives here: the check and the merge into `protocol.SamplingParams`. What does not: the
sampling. The names are SGLang's; a step's own argument wins over the run's, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phloem.errors import CompileError
from phloem.programs.protocol import SamplingParams

__all__ = ["RUN_OPTIONS", "STEP_OPTIONS", "clean", "merge"]

_ALIASES = {"max_new_tokens": "max_tokens"}
_LOGPROBS = ("return_logprob", "top_logprobs_num", "logprob_start_len", "return_text_in_logprobs")
STEP_OPTIONS = frozenset([*SamplingParams.__slots__, *_ALIASES, *_LOGPROBS])
"""Names that a step takes as sampling arguments."""
RUN_OPTIONS = STEP_OPTIONS | {"n"}
"""Names that `run()` takes as sampling arguments."""


def clean(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` by the names of `SamplingParams`, without the Nones, as immutable values.

    `logprob_start_len` and `return_text_in_logprobs` are accepted and need nothing: token
    texts are always reported, prompt positions never. Raises `CompileError` for a value out
    of range, naming it.
    """
    options = {
        _ALIASES.get(name, name): value for name, value in given.items() if value is not None
    }
    wanted = options.pop("return_logprob", None)
    top = options.pop("top_logprobs_num", 0)
    for name in ("logprob_start_len", "return_text_in_logprobs"):
        options.pop(name, None)
    if (wanted or top) and "logprobs" not in options:
        options["logprobs"] = top
    for name in ("stop", "stop_regex", "stop_token_ids"):
        if name in options:
            value = options[name]
            options[name] = (value,) if isinstance(value, str | int) else tuple(value)
    _check(options)
    return options


_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (0, float("inf")),
    "min_tokens": (0, float("inf")),
    "temperature": (0, float("inf")),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, float("inf")),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
}


def _check(options: Mapping[str, Any]) -> None:
    for name, (low, high) in _RANGES.items():
        value = options.get(name, low)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise CompileError(
                f"{name}={value!r} is not a number from {low:g} to {high:g}",
                hint=f"correct the argument {name}",
                argument=name,
            )


def merge(run: Mapping[str, Any], step: Mapping[str, Any], *, seed: int) -> SamplingParams:
    """The parameters of one step: its own arguments over the run's over the defaults."""
    return SamplingParams(**{"seed": seed, **run, **step})
