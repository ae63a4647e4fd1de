"""A program's arguments as form fields.

What lives here: from the JSON Schema of a program's arguments to what the template shows. What
does not: the HTML (templates/) and reading the form (static/page.js).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from phloem.server.programs.catalog import Registered

__all__ = ["Field", "Form", "form_of"]

Kind = Literal["text", "number", "integer", "boolean", "choice", "json"]


@dataclass(frozen=True, slots=True)
class Field:
    """One argument. `value` is what the field shows at first; `choices` are JSON texts."""

    name: str
    kind: Kind
    required: bool
    value: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """A program as the page shows it."""

    name: str
    doc: str
    fields: tuple[Field, ...]


def form_of(registered: Registered) -> Form:
    """The form of a program."""
    schema = registered.schema()
    required = set(schema.get("required", ()))
    fields = tuple(
        _field(name, _resolved(part, schema), name in required)
        for name, part in schema.get("properties", {}).items()
    )
    doc = inspect.getdoc(registered.program.function) or ""
    return Form(registered.name, doc, fields)


def _field(name: str, schema: Mapping[str, Any], required: bool) -> Field:
    kind, choices = _kind(schema)
    default = schema.get("default")
    if default is None:
        value = ""
    elif kind == "text":
        value = str(default)
    else:
        value = json.dumps(default)
    return Field(name, kind, required, value, choices)


def _kind(schema: Mapping[str, Any]) -> tuple[Kind, tuple[str, ...]]:
    if "const" in schema:
        return "choice", (json.dumps(schema["const"]),)
    if "enum" in schema:
        return "choice", tuple(json.dumps(one, ensure_ascii=False) for one in schema["enum"])
    simple: dict[str, Kind] = {
        "string": "text", "number": "number", "integer": "integer", "boolean": "boolean"
    }  # fmt: skip
    found = schema.get("type")
    return (simple.get(found, "json") if isinstance(found, str) else "json"), ()


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind a reference to the root's definitions; what stands beside it stays."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    target = root.get("$defs", {}).get(reference.rpartition("/")[2], {})
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
