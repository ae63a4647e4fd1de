"""Python and Outlines types -> constraints.

What lives here: which kind of constraint a type stands for, as JSON (`schema=`) or as bare text
(`type=`), and how a finished text becomes a value of the type again. What does not: checking
whether the result can be enforced (analyser.py).
"""

from __future__ import annotations

import datetime
import enum
import importlib
import json
import types
import typing
from typing import Any

import typing_extensions
from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from phloem.errors import ConstraintError
from phloem.grammar.python_schema import json_schema_of
from phloem.grammar.schema.formats import CLOCK, FORMATS
from phloem.grammar.spec import Constraint

__all__ = ["constraint_of_type", "schema_of_type", "value_of_text"]

_INTEGER = r"-?(0|[1-9][0-9]*)"
_DATE = FORMATS["date"]
_REGEXES: dict[Any, str] = {
    int: _INTEGER,
    float: _INTEGER + r"(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    bool: "True|False",
    datetime.date: _DATE,
    datetime.time: CLOCK,
    datetime.datetime: f"{_DATE}T{CLOCK}",
    type(None): "None",
}


def schema_of_type(target: Any) -> Any:
    """The JSON Schema of a pydantic model, dataclass, TypedDict, `Literal`, `Union`, ...

    See `python_schema`. Raises `ConstraintError` for what can't be described, or not be held.
    """
    if isinstance(target, str):
        raise ConstraintError(f"{target!r} is a text, not a type", hint="give the type itself")
    try:
        return json_schema_of(_adapter(target))
    except RecursionError as error:
        raise ConstraintError(
            f"no JSON Schema can be made for {target!r}: it contains itself",
            hint="use typing_extensions.TypedDict in place of typing.TypedDict, or a model",
        ) from error
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, ImportError) as error:
        raise ConstraintError(
            f"no JSON Schema can be made for {target!r}: {str(error).splitlines()[0]}",
            hint="give a pydantic model, a dataclass, a TypedDict, a Literal, or a schema",
        ) from error


def constraint_of_type(target: Any) -> Constraint:
    """The constraint `type=target` stands for: bare text, not JSON, for scalars.

    `Literal` and `Enum` are a choice of their texts; containers and models become JSON.
    """
    if _is_outlines_term(target):
        return _of_outlines(target)
    if isinstance(target, type) and target in _REGEXES:
        return Constraint("regex", _REGEXES[target])
    if target is str:
        return Constraint("regex", r"(?s:.*)")
    texts = _literal_texts(target)
    if texts is not None:
        return Constraint("choices", json.dumps(texts, ensure_ascii=False))
    members = _union_members(target)
    if members is not None:
        parts = [constraint_of_type(member) for member in members]
        if all(part.kind in {"regex", "choices"} for part in parts):
            return Constraint("regex", "|".join(f"({_as_regex(part)})" for part in parts))
    schema = json.dumps(schema_of_type(target), ensure_ascii=False)
    return Constraint("json_schema", schema, finish="force")


def value_of_text(text: str, kind: str, target: Any) -> Any:
    """`text` as an instance of `target`. Raises `ConstraintError` if it is none."""
    if _is_outlines_term(target):
        return text
    try:
        return _read_json(text, target) if kind == "json_schema" else _read_bare(text, target)
    except ValidationError as error:
        raise ConstraintError(
            f"the text does not fit {getattr(target, '__name__', target)}: "
            f"{error.errors()[0]['msg']}",
            text=text,
        ) from error


def _read_json(text: str, target: Any) -> Any:
    return _adapter(target).validate_json(text)


def _read_bare(text: str, target: Any) -> Any:
    """The value of bare text, as `constraint_of_type` has it written."""
    values = {"True": True, "False": False} if target is bool else _literal_values(target)
    values = {"None": None} if target is type(None) else values
    if values is not None and text in values:
        return values[text]
    members = _union_members(target)
    if members is None or len(members) < 2:
        return text if target is str else _adapter(target).validate_python(text)
    *others, last = members
    for member in others:
        try:
            return _read_bare(text, member)
        except ValidationError:
            continue
    return _read_bare(text, last)


def _adapter(target: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_readable(target))


def _readable(target: Any) -> Any:
    """The type with each `typing.TypedDict` in it as one that pydantic reads before Python 3.12."""
    if typing.is_typeddict(target) and type(target).__module__ == "typing":
        hints = typing.get_type_hints(target, include_extras=True)
        members = {name: _readable(hint) for name, hint in hints.items()}
        for name in target.__optional_keys__:
            members[name] = typing.NotRequired[members[name]]
        return typing_extensions.TypedDict(target.__name__, members)  # type: ignore[operator]
    arguments = typing.get_args(target)
    if not arguments or typing.get_origin(target) in {typing.Literal, typing.Annotated}:
        return target
    origin = typing.get_origin(target)
    if origin in {typing.Union, types.UnionType}:
        return typing.Union[tuple(map(_readable, arguments))]  # noqa: UP007 - made at run time
    if not isinstance(origin, type):
        return target
    generic: Any = origin
    return generic[tuple(map(_readable, arguments))]


def _is_outlines_term(target: Any) -> bool:
    return type(target).__module__.startswith("outlines.")


def _of_outlines(term: Any) -> Constraint:
    # Importing outlines takes seconds; whoever holds a term of it has paid already.
    dsl = importlib.import_module("outlines.types.dsl")
    if isinstance(term, dsl.JsonSchema):
        return Constraint("json_schema", term.schema, finish="force")
    if isinstance(term, dsl.CFG):
        return Constraint("lark", term.definition)
    if isinstance(term, dsl.Choice):
        return Constraint("choices", json.dumps([str(item) for item in term.items]))
    if not isinstance(term, dsl.Term):
        raise ConstraintError(f"{term!r} is no Outlines term")
    try:
        return Constraint("regex", dsl.to_regex(term))
    except (TypeError, NotImplementedError, ValueError) as error:
        raise ConstraintError(f"Outlines can't write {term!r} as a regex: {error}") from error


def _literal_values(target: Any) -> dict[str, Any] | None:
    """The values of a `Literal` or an enum by their texts; of an enum's member, its value's."""
    if typing.get_origin(target) is typing.Literal:
        values = typing.get_args(target)
    elif isinstance(target, type) and issubclass(target, enum.Enum):
        values = tuple(target)
    else:
        return None
    if not values:
        raise ConstraintError(f"{target} has no values")
    found = {str(v.value if isinstance(v, enum.Enum) else v): v for v in values}
    if len(found) < len(values):
        raise ConstraintError(
            f"two values of {target} have the same text", hint="use schema=: JSON tells them apart"
        )
    return found


def _literal_texts(target: Any) -> list[str] | None:
    values = _literal_values(target)
    return None if values is None else list(values)


def _union_members(target: Any) -> tuple[Any, ...] | None:
    if typing.get_origin(target) in {typing.Union, types.UnionType}:
        return typing.get_args(target)
    return None


def _as_regex(part: Constraint) -> str:
    if part.kind == "regex":
        return part.source
    return "|".join(_quote(text) for text in json.loads(part.source))


def _quote(text: str) -> str:
    return "".join("\\" + char if char in r"\.^$*+?{}[]()|/-" else char for char in text)
