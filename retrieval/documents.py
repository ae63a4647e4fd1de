"""What every index asks of documents, names and queries before it touches storage.

What lives here: the checks and the fingerprint. What does not: storage, and the shape of the
types (`base.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from phloem.errors import InvalidQuery, RetrievalError
from phloem.retrieval.base import Document, Query, Reranker

__all__ = [
    "MAX_HITS",
    "MAX_WORDS",
    "check_index_name",
    "check_query",
    "documents",
    "embedded_text",
    "fingerprint",
    "id_list",
    "in_batches",
    "plain_text",
    "problem",
]

T = TypeVar("T")

MAX_WORDS = 400
"""Words of a query that are matched. Servers cap the clauses of one query at about 1,024, and
each word is a clause for every field."""

MAX_HITS = 10_000
"""Hits that one search may ask for: the limit of servers (`index.max_result_window`)."""

_BAD_NAME = re.compile(r'[\\/*?"<>|\s,#:]')
_MAX_ID_BYTES = 512


def check_index_name(name: str) -> str:
    """`name`, if an index may be called that: Elasticsearch's rules, so that names are portable.

    Raises `InvalidQuery` naming the rule.
    """
    _check_one_name(name)
    found = _BAD_NAME.search(name)
    if found or name != name.lower() or name[0] in "-_+" or len(name.encode()) > 200:
        raise InvalidQuery(
            f"not an index name: {name!r}",
            hint='lower case, no spaces, none of \\ / * ? " < > | , # :, not starting with - _ +',
        )
    return name


def _check_one_name(name: object) -> None:
    """Less than `check_index_name`, since a query may name aliases and patterns. What it refuses
    would be another address of the server, or another folder."""
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise InvalidQuery(f"not an index name: {name!r}", hint="give a text without slashes")


def check_query(query: Query) -> Query:
    """`query`. Raises `InvalidQuery` for a senseless one, before anything is asked: in a request
    that several searches share, one that is malformed could be the others' failure."""
    if query.raw is None and not (isinstance(query.text, str) and query.text.strip()):
        raise InvalidQuery(
            f"the query text is empty ({query.text!r})"
            if query.text is None or isinstance(query.text, str)
            else f"the query is not text but {type(query.text).__name__}",
            hint="give text to search for; an empty query never means 'everything'",
            index=query.index,
        )
    index = query.index
    _check_one_name(index)
    if type(query.k) is not int or not 1 <= query.k <= MAX_HITS:
        raise InvalidQuery(f"k must be 1 to {MAX_HITS}, not {query.k!r}", index=index)
    if query.mode not in ("bm25", "knn", "hybrid"):
        raise InvalidQuery(f"no search mode {query.mode!r}", hint='one of "bm25", "knn", "hybrid"')
    if query.timeout is not None and not (_is_number(query.timeout) and query.timeout > 0):
        raise InvalidQuery(f"timeout must be positive, not {query.timeout!r}")
    if query.min_score is not None and not _is_number(query.min_score):
        raise InvalidQuery(f"min_score must be a number, not {query.min_score!r}", index=index)
    fields: Any = query.fields
    if not (isinstance(fields, tuple | list) and all(isinstance(name, str) for name in fields)):
        raise InvalidQuery(
            f"fields must be a list of names, not {fields!r}", hint='fields=["text", "title"]'
        )
    if query.rerank is not None and not isinstance(query.rerank, Reranker):
        raise InvalidQuery(f"{query.rerank!r} is no reranker", hint="see phloem.retrieval.Reranker")
    _check_raw(query)
    return query


def _check_raw(query: Query) -> None:
    if query.raw is None:
        return
    if query.mode != "bm25":
        raise InvalidQuery("a raw query takes the place of mode and text; leave mode alone")
    try:
        if not isinstance(query.raw, Mapping):
            raise TypeError("it is no mapping")
        json.dumps(dict(query.raw), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidQuery(f"raw is not a query in JSON: {error}", index=query.index) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain_text(text: str) -> str:
    """`text` as it is matched: its first `MAX_WORDS` words, lone surrogates replaced."""
    words = text.encode("utf-8", "replace").decode("utf-8").split()
    return " ".join(words[:MAX_WORDS])


def problem(doc: Document) -> str | None:
    """Why `doc` can't be stored anywhere, or None. Types are checked: they come from files."""
    given: list[tuple[str, Any]] = [("id", doc.id), ("text", doc.text), ("title", doc.title or "")]
    for name, value in given:
        if not isinstance(value, str):
            return f"the {name} is not a string but {type(value).__name__}"
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            return f"the {name} is not valid Unicode at character {error.start}"
    if not doc.id or len(doc.id.encode()) > _MAX_ID_BYTES:
        return f"the id must have 1 to {_MAX_ID_BYTES} bytes"
    try:
        json.dumps(dict(doc.meta), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"meta is not JSON: {error}"
    return None


def fingerprint(doc: Document) -> str:
    """A hash of what `doc` says; two documents with equal ones need not be stored twice."""
    content = json.dumps([doc.text, doc.title, doc.meta], sort_keys=True, default=list)
    digest = hashlib.sha256(content.encode())
    if doc.vector is not None:
        digest.update(array("f", doc.vector).tobytes())
    return digest.hexdigest()[:32]


def documents(given: Iterable[Document]) -> Iterator[Document]:
    """`given` one by one. Raises `RetrievalError` for what is no documents at all: a mistake of the
    program, where a document that can't be stored is the data's."""
    for doc in _several(given, "documents"):
        if not isinstance(doc, Document):
            raise RetrievalError(
                f"not a document: {type(doc).__name__}",
                hint="make it one: Document(id=..., text=..., title=..., meta={...})",
            )
        yield doc


def id_list(ids: Iterable[str]) -> list[str]:
    """`ids` as a list. Raises `RetrievalError` for one text, whose letters would be taken for ids,
    and for what is no text."""
    found = list(_several(ids, "ids"))
    for one in found:
        if not isinstance(one, str):
            raise RetrievalError(f"not an id: {one!r}", hint="ids are texts")
    return found


def _several(given: Iterable[T], what: str) -> Iterable[T]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise RetrievalError(
            f"not a list of {what}: {type(given).__name__}", hint="give a list or an iterator"
        )
    return given


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """`items` in lists of up to `size`, never holding more."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def embedded_text(doc: Document) -> str:
    """The text of `doc` that its vector stands for."""
    return f"{doc.title}\n{doc.text}" if doc.title else doc.text
