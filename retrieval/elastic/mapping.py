"""The mappings of indexes that phloem makes on a server.

What lives here: the default mapping, and field types out of a pydantic model. What does not:
creating an index (`admin.py`). Strings in metadata are keywords and numbers doubles, so that a
filter means on a server what `filters.matches` says; dates stay ISO strings unless a model
declares them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from phloem.errors import RetrievalError
from phloem.retrieval.elastic.bodies import FINGERPRINT, Dialect, FieldMap

__all__ = ["FullText", "index_mapping", "model_properties", "vector_property"]


class FullText:
    """In `Annotated[str, FullText()]`: the field is searched by words, not compared whole."""


_SIMPLE: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "long"),
    (float, "double"),
    (datetime, "date"),
    (date, "date"),
    (str, "keyword"),
    (time, "keyword"),
    (dict, "object"),
)


def index_mapping(
    fields: FieldMap,
    dialect: Dialect,
    *,
    dims: int | None = None,
    embedder: str | None = None,
    typed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body that creates an index with `dims`-dimensional vectors, if any, and the field types
    `typed` (of `model_properties`); the index remembers these for its rebuilds."""
    meta = fields.meta or "meta"
    properties: dict[str, Any] = {
        fields.text: {"type": "text"},
        fields.title: {"type": "text"},
        FINGERPRINT: {"type": "keyword", "index": False},
        meta: {"type": "object", "properties": dict(typed or {})},
    }
    settings: dict[str, Any] = {"number_of_shards": 1}
    if dialect == "opensearch":
        settings["index.knn"] = True  # can't be switched on when the first vector comes
    if dims is not None:
        properties[fields.vector] = vector_property(dims, dialect)
    templates = [
        _template("strings", "string", meta, {"type": "keyword"}),
        _template("integers", "long", meta, {"type": "double"}),
        _template("floats", "double", meta, {"type": "double"}),
    ]
    return {
        "settings": settings,
        "mappings": {
            "date_detection": False,
            "dynamic_templates": templates,
            "_meta": {"phloem": {"embedder": embedder, "fields": dict(typed or {})}},
            "properties": properties,
        },
    }


def vector_property(dims: int, dialect: Dialect) -> dict[str, Any]:
    """The mapping of a vector field."""
    if dialect == "opensearch":
        method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
        return {"type": "knn_vector", "dimension": dims, "method": method}
    return {
        "type": "dense_vector",
        "dims": dims,
        "index": True,
        "similarity": "cosine",
        "index_options": {"type": "hnsw"},
    }


def _template(name: str, matched: str, meta: str, mapping: dict[str, Any]) -> dict[str, Any]:
    return {name: {"match_mapping_type": matched, "path_match": f"{meta}.*", "mapping": mapping}}


def model_properties(model: type) -> dict[str, Any]:
    """The field types of a pydantic model of the metadata.

    Raises `RetrievalError` naming a field whose type has no counterpart.
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise RetrievalError(f"not a pydantic model: {model!r}")
    return {
        field.serialization_alias or field.alias or name: _property(
            Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation,
            f"{model.__name__}.{name}",
        )
        for name, field in model.model_fields.items()
    }


def _property(annotation: Any, place: str) -> dict[str, Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if any(isinstance(extra, FullText) or extra is FullText for extra in args[1:]):
            return {"type": "text"}
        return _property(args[0], place)
    if isinstance(annotation, type) and origin is None:
        found = _of_class(annotation, place)
    else:
        inner = [_property(arg, place) for arg in _members(origin, args)]
        # A union of several field types, or a type without a counterpart, is refused.
        found = inner[0] if inner and all(one == inner[0] for one in inner) else None
    if found is None:
        raise RetrievalError(
            f"{place}: no field type for {annotation!r}",
            hint="use str, int, float, bool, date, datetime, an Enum, a Literal, a list or a model",
        )
    return found


def _of_class(cls: type, place: str) -> dict[str, Any] | None:
    if issubclass(cls, BaseModel):
        return {"type": "object", "properties": model_properties(cls)}
    if issubclass(cls, Enum):
        return _property(type(next(iter(cls)).value), place)
    return next(({"type": name} for python, name in _SIMPLE if issubclass(cls, python)), None)


def _members(origin: Any, args: tuple[Any, ...]) -> list[Any]:
    """The types a generic type is made of: a field may always be missing or hold several."""
    if origin in (Union, types.UnionType):
        return [arg for arg in args if arg is not type(None)]
    if origin is Literal:
        return [type(arg) for arg in args]
    if origin in (list, tuple, set, frozenset):
        return [arg for arg in args if arg is not Ellipsis]
    return [dict] if origin is dict else []
