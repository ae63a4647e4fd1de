"""Branches of a union told apart by a member that names them.

What lives here: the members a branch must have with one of a few known values, and whether two
branches differ in one. It is the quick answer for the usual discriminated union, where comparing
each branch with each other one by their states would take too long. What does not: the slow, exact
answer (build.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phloem.grammar.schema.document import Document
from phloem.grammar.schema.values import key_of

__all__ = ["Tags", "tags_of", "told_apart"]

_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Tags:
    """`values` of required members by name, as keys; `objects`: the branch holds nothing else."""

    objects: bool = False
    values: dict[str, frozenset[str]] = field(default_factory=dict)


def tags_of(document: Document, number: int) -> Tags:
    """What tells the values of a subschema from others, as far as it says so itself."""
    for _ in range(_DEPTH):
        sub = document.subs[number]
        if isinstance(sub.value, bool):
            return Tags()
        schema = document.read(sub.value)
        if set(schema) != {"$ref"}:
            break
        number = document.target("$ref", schema["$ref"], sub.base, sub.path)
    found = {}
    for name in schema.get("required", ()):
        member = schema.get("properties", {}).get(name)
        read = document.read(member) if isinstance(member, dict) else {}
        listed = [read["const"]] if "const" in read else read.get("enum")
        if listed is not None:
            found[name] = frozenset(map(key_of, listed))
    return Tags(schema.get("type") == "object", found)


def told_apart(left: Tags, right: Tags) -> bool:
    """Whether surely no value has the tags of both."""
    return (left.objects or right.objects) and any(
        name in right.values and values.isdisjoint(right.values[name])
        for name, values in left.values.items()
    )
