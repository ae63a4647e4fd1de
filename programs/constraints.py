"""From the arguments of `gen` to a constraint, and what the step's value is then.

What lives here: `build`, used when a step runs and when a graph is compiled. What does not:
the language of constraints, which is the analyser's (`grammar/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.spec import Analyser, Constraint

__all__ = ["ARGUMENTS", "Built", "Cited", "build"]

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


@dataclass(frozen=True, slots=True)
class Cited:
    """A schema whose properties called `field` hold ids, or numbers from 1 to `count`, only."""

    schema: Any
    ids: tuple[str, ...]
    count: int
    field: str


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
    if source in {"regex", "grammar"} and not isinstance(value, str):
        raise ConstraintError(
            f"{source}= takes a text, not {type(value).__name__}", hint="write the pattern as text"
        )
    rest = {name: given[name] for name in ("after", "finish", "whitespace") if name in given}
    match source:
        case "regex":
            return Built(analyser.build(regex=value, **rest))
        case "grammar":
            return Built(analyser.build(lark=value, **rest))
        case "json_schema":
            return Built(analyser.build(schema=value, **rest))
        case "schema":
            said = value.schema if isinstance(value, Cited) else value
            target = said if not isinstance(said, str | dict | bool) else None
            constraint = analyser.build(schema=said, **rest)
            if isinstance(value, Cited):
                allowed = _only_known(json.loads(constraint.source), value)
                constraint = analyser.build(schema=allowed, **rest)
            return Built(constraint, parse=True, target=target)
        case "type":
            return Built(analyser.build(type=value, **rest), parse=True, target=value)
    if value not in _DTYPES:
        raise ConstraintError(
            f"dtype={value!r} is not one of int, float, bool, str",
            hint="use type= for other types",
        )
    pattern, stop = _DTYPES[value]
    return Built(analyser.build(regex=pattern, **rest), stop=stop)


def _only_known(schema: Any, cited: Cited) -> Any:
    """`schema` with every property called `cited.field` held to the documents that were found.

    Raises `ConstraintError` if there is none.
    """
    found = 0

    def walk(part: Any) -> Any:
        nonlocal found
        if isinstance(part, list):
            return [walk(item) for item in part]
        if not isinstance(part, dict):
            return part
        made = {name: walk(value) for name, value in part.items()}
        properties = part.get("properties")
        if isinstance(properties, dict) and cited.field in properties:
            held = _held(properties[cited.field], schema, cited)
            made["properties"] = {**made["properties"], cited.field: held}
            found += 1
        return made

    made = walk(schema)
    if not found:
        raise ConstraintError(
            f"the schema has no property {cited.field!r} to cite in",
            hint="name the field that holds document ids or passage numbers: cited(..., field=)",
        )
    return made


def _held(part: Any, root: Any, cited: Cited) -> Any:
    """One property's schema with its texts as ids, and its whole numbers as numbers of passages."""
    while isinstance(part, dict) and "$ref" in part:
        part = _referred(part["$ref"], root)
    kind = part.get("type") if isinstance(part, dict) else None
    known = {"string": list(cited.ids), "integer": list(range(1, cited.count + 1))}.get(str(kind))
    if known is not None:
        if not known:
            raise ConstraintError(
                f"{cited.field!r} must name a document, and none was found",
                hint="branch on the hits before this step, or let the field be a list",
            )
        return {"enum": known}
    if kind == "array":
        if not cited.ids:
            return {"type": "array", "items": False, "maxItems": 0}
        items = _held(part.get("items", {"type": "string"}), root, cited)
        most = min(part.get("maxItems", cited.count), cited.count)
        return {**part, "items": items, "maxItems": most}
    for several in ("anyOf", "oneOf"):
        if isinstance(part, dict) and several in part:
            return {**part, several: [_held(one, root, cited) for one in part[several]]}
    if kind == "null":
        return part
    raise ConstraintError(
        f"{cited.field!r} holds neither text nor whole numbers, so it can't cite",
        hint="declare it as str, int, or a list of them",
    )


def _referred(reference: str, root: Any) -> Any:
    """What a reference inside the schema points at ("#/$defs/Name")."""
    part = root
    for step in reference.removeprefix("#/").split("/"):
        part = part[step.replace("~1", "/").replace("~0", "~")]
    return part
