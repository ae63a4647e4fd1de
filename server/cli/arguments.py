"""Words of a command line to a program's arguments, typed by its signature.

What lives here: splitting `--name value` words and turning each value into the type that the
parameter is annotated with. What does not: the options of the command itself (`app.py`).
"""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from phloem.errors import ConfigError

__all__ = ["parse_arguments"]


def parse_arguments(
    function: Callable[..., Any],
    names: Sequence[str],
    words: Sequence[str],
    pairs: Sequence[str] = (),
) -> dict[str, Any]:
    """The keyword arguments that `words` (`--name value`, `--name=value`) and `pairs`
    (`name=value`) give for the parameters `names` of `function`, by their annotations.

    A value is taken as it stands for `str` and unannotated parameters, else as JSON, else as
    text that pydantic converts. A parameter of type list may be named several times. Raises
    `ConfigError` for unknown, missing, doubled or unfit arguments.
    """
    parameters = {name: inspect.signature(function).parameters[name] for name in names}
    hints = _hints(function)
    given: dict[str, list[str]] = {}
    for name, value in [*_named(words, hints), *_pairs(pairs)]:
        if name not in parameters:
            raise ConfigError(
                f"the program has no argument {name!r}", hint=_known(name, parameters)
            )
        given.setdefault(name, []).append(value)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in given
    ]
    if missing:
        needed = " ".join(f"--{name} VALUE" for name in missing)
        raise ConfigError(f"missing: {', '.join(missing)}", hint=f"add {needed}")
    return {name: _value(name, values, hints.get(name, str)) for name, values in given.items()}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"an annotation of {function.__name__}() can't be resolved: {error}",
            hint="import or define the type at the top of the file",
        ) from error


def _named(words: Sequence[str], hints: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) pairs out of `--name value` and `--name=value` words."""
    found = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ConfigError(
                f"unexpected {word!r}", hint="arguments have names: --name value, values in quotes"
            )
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            if hints.get(name) is bool and (not rest or rest[0].startswith("--")):
                value = "true"
            elif not rest:
                raise ConfigError(f"--{name} has no value", hint=f"write --{name} VALUE")
            else:
                value = rest.pop(0)
        found.append((name, value))
    return found


def _pairs(pairs: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--arg {pair!r} has no value", hint="write --arg NAME=VALUE")
        found.append((name, value))
    return found


def _known(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    close = difflib.get_close_matches(name, parameters, n=1)
    if close:
        return f"did you mean --{close[0]}?"
    return "it has " + (", ".join(f"--{known}" for known in parameters) or "none")


def _value(name: str, values: Sequence[str], kind: Any) -> Any:
    if kind is str or kind is Any:
        return _only(name, values)
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    if len(values) > 1 and typing.get_origin(kind) in (list, set, tuple, Sequence):
        return _convert(name, values, adapter.validate_python)
    text = _only(name, values)
    try:
        return adapter.validate_json(text)
    except ValidationError:
        return _convert(name, text, adapter.validate_strings)


def _only(name: str, values: Sequence[str]) -> str:
    if len(values) > 1:
        raise ConfigError(f"--{name} is given {len(values)} times", hint="give it once")
    return values[0]


def _convert(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise ConfigError(
            f"--{name}: {value!r} does not fit: {problem}",
            hint="lists, objects and numbers are written as JSON",
        ) from error
