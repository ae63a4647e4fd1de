"""From the arguments of `gen` to a constraint, and what the step's value is then.

What lives here: `build`, used when a step runs and when a graph is compiled. What does not:
the language of constraints, which is the analyser's (`grammar/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.spec import Analyser, Constraint

__all__ = ["ARGUMENTS", "Built", "build"]

ARGUMENTS = frozenset(
    ["regex", "schema", "json_schema", "type", "dtype", "grammar", "after", "finish", "whitespace"]
)
"""Arguments of `gen` that say what its text must be."""
_SOURCES = ("regex", "schema", "json_schema", "type", "dtype", "grammar")

_DTYPES: dict[type, tuple[str, tuple[str, ...]]] = {
    int: (r"[-+]?[0-9]+[ \n]*", (" ", "\n")),
    float: (r"[-+]?[0-9]*\.?[0-9]+[ \n]*", (" ", "\n")),
    bool: (r"(True|False)", ()),
    str: (r'"[^"\\\n]*"', ()),
}
"""SGLang's patterns and stop texts for `dtype=`; its string takes punctuation here too."""


@dataclass(frozen=True, slots=True)
class Built:
    """A constraint (or none), whether the value is parsed and into what, and added stops."""

    constraint: Constraint | None = None
    parse: bool = False
    target: Any = None
    stop: tuple[str, ...] = ()


def build(analyser: Analyser, given: Mapping[str, Any]) -> Built:
    """The constraint that the arguments `given` ask for.

    `schema=` and `type=` give parsed values; `regex=`, `json_schema=`, `grammar=` and `dtype=`
    give text. Raises `ConstraintError` for more than one of them, or for one that can't be
    enforced.
    """
    named = [name for name in _SOURCES if given.get(name) is not None]
    if len(named) > 1:
        raise ConstraintError(
            f"a step takes one of {', '.join(f'{name}=' for name in named)}, not several",
            hint="drop all but one",
        )
    if not named:
        return Built()
    source, value = named[0], given[named[0]]
    rest = {name: given[name] for name in ("after", "finish", "whitespace") if name in given}
    match source:
        case "regex":
            return Built(analyser.build(regex=value, **rest))
        case "grammar":
            return Built(analyser.build(lark=value, **rest))
        case "json_schema":
            return Built(analyser.build(schema=value, **rest))
        case "schema":
            target = value if not isinstance(value, str | dict | bool) else None
            return Built(analyser.build(schema=value, **rest), parse=True, target=target)
        case "type":
            return Built(analyser.build(type=value, **rest), parse=True, target=value)
    if value not in _DTYPES:
        raise ConstraintError(
            f"dtype={value!r} is not one of int, float, bool, str",
            hint="use type= for other types",
        )
    pattern, stop = _DTYPES[value]
    return Built(analyser.build(regex=pattern, **rest), stop=stop)
