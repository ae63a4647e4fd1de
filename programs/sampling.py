"""Sampling arguments: their names, their aliases, and how a step's join the run's.

What lives here: the check and the merge into `protocol.SamplingParams`. What does not: the
sampling. The names are SGLang's; a step's own argument wins over the run's, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from phloem.errors import CompileError
from phloem.programs.effects import well_formed
from phloem.programs.protocol import SamplingParams

__all__ = ["RUN_OPTIONS", "STEP_OPTIONS", "clean", "merge"]

_ALIASES = {"max_new_tokens": "max_tokens"}
_LOGPROBS = ("return_logprob", "top_logprobs_num", "logprob_start_len", "return_text_in_logprobs")
STEP_OPTIONS = frozenset([*SamplingParams.__slots__, *_ALIASES, *_LOGPROBS]) - {"stream"}
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
            options[name] = _several(name, options[name])
    _check(options)
    return options


def _several(name: str, value: Any) -> tuple[Any, ...]:
    """One text (or token id), or several, as a tuple."""
    kind: type = int if name == "stop_token_ids" else str
    values = (value,) if isinstance(value, str | int) else value
    if isinstance(values, Iterable) and not isinstance(values, Mapping):
        found = tuple(values)
        if all(isinstance(item, kind) and item != "" for item in found):
            return tuple(well_formed(i, name) if isinstance(i, str) else i for i in found)
    wanted = "token ids" if kind is int else "texts of one character or more"
    raise _refused(name, value, wanted)


_RANGES: dict[str, tuple[type, float, float]] = {
    "max_tokens": (int, 0, float("inf")),
    "min_tokens": (int, 0, float("inf")),
    "temperature": (float, 0, float("inf")),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "top_k": (int, -1, float("inf")),
    "frequency_penalty": (float, -2, 2),
    "presence_penalty": (float, -2, 2),
    "repetition_penalty": (float, 0, 10),
    "logprobs": (int, 0, 100),
    "n": (int, 1, float("inf")),
    "seed": (int, float("-inf"), float("inf")),
}
"""Of each argument whether it is a whole number, and the least and the greatest."""
_ABOVE_LEAST = frozenset(["top_p", "repetition_penalty"])


def _check(options: Mapping[str, Any]) -> None:
    for name, (kind, low, high) in _RANGES.items():
        value = options.get(name)
        if value is None:
            continue
        real = isinstance(value, int if kind is int else int | float)
        inside = real and not isinstance(value, bool) and low <= value <= high
        if not inside or (value == low and name in _ABOVE_LEAST) or (name, value) == ("top_k", 0):
            what = "whole number" if kind is int else "number"
            raise _refused(name, value, f"a {what} {_range(name, low, high)}")
    if not isinstance(options.get("ignore_eos", False), bool):
        raise _refused("ignore_eos", options["ignore_eos"], "True or False")
    if options.get("min_tokens", 0) > options.get("max_tokens", float("inf")):
        raise _refused("min_tokens", options["min_tokens"], "at most max_tokens")


def _range(name: str, low: float, high: float) -> str:
    if name == "seed":
        return "of any size"
    if name == "top_k":
        return "from 1 up, or -1 for all"
    if name in _ABOVE_LEAST:
        return f"above {low:g} and at most {high:g}"
    return f"from {low:g} up" if high == float("inf") else f"from {low:g} to {high:g}"


def _refused(name: str, value: Any, wanted: str) -> CompileError:
    return CompileError(
        f"{name}={value!r} is not {wanted}", hint=f"correct the argument {name}", argument=name
    )


def merge(run: Mapping[str, Any], step: Mapping[str, Any], *, seed: int) -> SamplingParams:
    """The parameters of one step: its own arguments over the run's over the defaults."""
    return SamplingParams(**{"seed": seed, **run, **step})
