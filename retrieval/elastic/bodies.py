"""Queries and filters in the server's language.

What lives here: the request bodies, and how phloem's field names map to an index's own. What
does not: sending them. The text of a query only ever goes out as the value of a `match`, which
has no syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from phloem.errors import FieldNotFound
from phloem.retrieval.base import Hit, Query
from phloem.retrieval.documents import plain_text
from phloem.retrieval.filters import And, Exists, Filter, Not, Or, Range, Term, Terms, values_at
from phloem.retrieval.pipeline import RANK_CONSTANT, TIE_BREAKER, boosted_fields, window

__all__ = [
    "Dialect",
    "FieldMap",
    "filter_clause",
    "hit_of",
    "hybrid_body",
    "knn_body",
    "raw_body",
    "words_body",
]

Dialect = Literal["elasticsearch", "opensearch"]
_FRAGMENT_CHARS = 150
_MAX_CANDIDATES = 10_000
FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True)
class FieldMap:
    """What the fields of an index are called.

    The defaults are those of indexes that phloem makes. For another index name its fields;
    `meta=None` says that metadata are the other fields of the document, not an object.
    """

    text: str = "text"
    title: str = "title"
    meta: str | None = "meta"
    vector: str = "vector"

    def path(self, field: str) -> str:
        """The server's name of phloem's `field`: "text", "title" or a key of `meta`."""
        if field == "text":
            return self.text
        if field == "title":
            return self.title
        return f"{self.meta}.{field}" if self.meta else field


def filter_clause(filter_: Filter, fields: FieldMap) -> dict[str, Any]:
    """`filter_` as a query clause."""
    match filter_:
        case Term(field, value):
            return {"term": {fields.path(field): value}}
        case Terms(field, values):
            return {"terms": {fields.path(field): list(values)}}
        case Range(field):
            return {"range": {fields.path(field): filter_.bounds()}}
        case Exists(field):
            return {"exists": {"field": fields.path(field)}}
        case And(filters):
            return {"bool": {"filter": [filter_clause(part, fields) for part in filters]}}
        case Or(filters):
            parts = [filter_clause(part, fields) for part in filters]
            return {"bool": {"should": parts, "minimum_should_match": 1}} if parts else _NOTHING
        case Not(inner):
            return {"bool": {"must_not": [filter_clause(inner, fields)]}}


_NOTHING: dict[str, Any] = {"match_none": {}}


def words_body(query: Query, wanted: Filter | None, fields: FieldMap, size: int) -> dict[str, Any]:
    """A search by words."""
    body = {"query": _filtered(_match(query, fields), wanted, fields), **_shape(size, fields)}
    if query.highlight:
        body["highlight"] = {
            "pre_tags": ["<em>"],
            "post_tags": ["</em>"],
            "fields": {fields.text: {"number_of_fragments": 1, "fragment_size": _FRAGMENT_CHARS}},
        }
    return body


def raw_body(query: Query, wanted: Filter | None, fields: FieldMap, size: int) -> dict[str, Any]:
    """A search by the expert's own query."""
    assert query.raw is not None
    return {"query": _filtered(dict(query.raw), wanted, fields), **_shape(size, fields)}


def knn_body(
    vector: list[float], wanted: Filter | None, fields: FieldMap, size: int, dialect: Dialect
) -> dict[str, Any]:
    """A search by nearest vectors."""
    if dialect == "opensearch":
        options: dict[str, Any] = {"vector": vector, "k": size}
        if wanted is not None:
            options["filter"] = filter_clause(wanted, fields)
        return {"query": {"knn": {fields.vector: options}}, **_shape(size, fields)}
    return {"knn": _knn(vector, wanted, fields, size), **_shape(size, fields)}


def hybrid_body(
    query: Query, vector: list[float], wanted: Filter | None, fields: FieldMap
) -> dict[str, Any]:
    """A search by words and vectors at once, fused on an Elasticsearch server."""
    size = window(query.k)
    by_words = {"query": _filtered(_match(query, fields), wanted, fields)}
    fusion = {
        "retrievers": [{"standard": by_words}, {"knn": _knn(vector, wanted, fields, size)}],
        "rank_constant": RANK_CONSTANT,
        "rank_window_size": size,
    }
    return {"retriever": {"rrf": fusion}, **_shape(query.k, fields)}


def _knn(vector: list[float], wanted: Filter | None, fields: FieldMap, size: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "field": fields.vector,
        "query_vector": vector,
        "k": size,
        "num_candidates": min(max(100, 2 * size), _MAX_CANDIDATES),
    }
    if wanted is not None:
        options["filter"] = filter_clause(wanted, fields)
    return options


def _shape(size: int, fields: FieldMap) -> dict[str, Any]:
    return {
        "size": size,
        "track_total_hits": False,
        "_source": {"excludes": [fields.vector, FINGERPRINT]},
    }


def _match(query: Query, fields: FieldMap) -> dict[str, Any]:
    text = plain_text(query.text)
    named = [(fields.path(name), boost) for name, boost in boosted_fields(query.fields)]
    if len(named) == 1:
        ((name, boost),) = named
        return {"match": {name: {"query": text, "boost": boost}}}
    return {
        "multi_match": {
            "query": text,
            "type": "best_fields",
            "tie_breaker": TIE_BREAKER,
            "fields": [name if boost == 1 else f"{name}^{boost:g}" for name, boost in named],
        }
    }


def _filtered(clause: dict[str, Any], wanted: Filter | None, fields: FieldMap) -> dict[str, Any]:
    if wanted is None:
        return clause
    return {"bool": {"must": [clause], "filter": [filter_clause(wanted, fields)]}}


def hit_of(found: Mapping[str, Any], fields: FieldMap, index: str) -> Hit:
    """A server's hit. Raises `FieldNotFound` if the document has no text."""
    source: Mapping[str, Any] = found.get("_source") or {}
    text = _text_at(source, fields.text)
    if text is None:
        raise FieldNotFound(
            f"document {found.get('_id')!r} of index {index!r} has no text field {fields.text!r}",
            hint=f"it has: {', '.join(sorted(source)) or 'nothing'}; name the text field "
            "(FieldMap(text=...), PHLOEM_ES_TEXT_FIELD)",
            index=index,
            field=fields.text,
        )
    return Hit(
        id=str(found.get("_id", "")),
        text=text,
        score=float(found.get("_score") or 0.0),
        title=_text_at(source, fields.title),
        index=index,
        meta=meta_of(source, fields),
        highlights=tuple(found.get("highlight", {}).get(fields.text, ())),
    )


def _text_at(source: Mapping[str, Any], field: str) -> str | None:
    """The text in `field`, which may lie in an object ("page.body") or be several ("tags")."""
    value = source.get(field)
    if isinstance(value, str):
        return value
    values = list(values_at(source, field))
    return "\n".join(values) if values and all(isinstance(v, str) for v in values) else None


def meta_of(source: Mapping[str, Any], fields: FieldMap) -> dict[str, Any]:
    """The metadata of a stored document."""
    if fields.meta:
        return dict(source.get(fields.meta) or {})
    own = {fields.text, fields.title, fields.vector, FINGERPRINT}
    return {name: value for name, value in source.items() if name not in own}
