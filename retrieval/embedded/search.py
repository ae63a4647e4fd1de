"""Answers a query on a snapshot: words by tantivy's BM25, vectors by an exact scan.

What lives here: the three modes, highlights, and telling a missing field from no hits. What
does not: checks, timeouts and reranking (`pipeline.py`).

Scores are on Elasticsearch's scales: BM25 without the constant factor k1 + 1 that tantivy
keeps, and (1 + cosine) / 2 for vectors.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tantivy

from phloem.errors import FieldNotFound, InvalidQuery
from phloem.retrieval.base import Hit, Query
from phloem.retrieval.documents import plain_text
from phloem.retrieval.embed.protocol import Matrix, check_dims
from phloem.retrieval.embedded.facts import exact_term, filter_query, has_term
from phloem.retrieval.embedded.reader import Snapshot
from phloem.retrieval.embedded.schema import TEXT_FIELDS, TITLED, to_hit, words
from phloem.retrieval.filters import Filter, fields_of, parse_filter
from phloem.retrieval.pipeline import TIE_BREAKER, boosted_fields, fuse, window

__all__ = ["find"]

_K1, _B = 1.2, 0.75
_BM25_SCALE = 1 / (_K1 + 1)
_FRAGMENT_CHARS = 150


def find(snapshot: Snapshot, query: Query, vector_of: Callable[[str], Matrix]) -> tuple[Hit, ...]:
    """The best hits of `query`, whose vector, where one is needed, `vector_of(text)` makes."""
    if query.raw is not None:
        raise InvalidQuery(
            "a raw query is in Elasticsearch's language; the embedded index does not speak it",
            hint="use text=, fields= and filter=",
            index=query.index,
        )
    wanted = parse_filter(query.filter)
    size = window(query.k) if query.mode == "hybrid" else query.k
    rankings = []
    if query.mode != "knn":
        rankings.append(_by_words(snapshot, query, wanted, size))
    if query.mode != "bm25":
        vector = _query_vector(snapshot, query, vector_of)
        rankings.append(_by_vector(snapshot, vector, wanted, size))
    hits = fuse(rankings, query.k) if query.mode == "hybrid" else rankings[0]
    if not hits:
        _check_fields(snapshot, query, wanted)
    return hits


def _by_words(
    snapshot: Snapshot, query: Query, wanted: Filter | None, size: int
) -> tuple[Hit, ...]:
    matched = _text_query(snapshot, query)
    if matched is None:
        return ()
    full = matched
    if wanted is not None:
        allowed = filter_query(wanted, snapshot.schema, snapshot.searcher)
        full = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Must, matched),
                (tantivy.Occur.Must, tantivy.Query.const_score_query(allowed, 0.0)),
            ]
        )
    found = snapshot.searcher.search(full, limit=size, count=False)
    stored = [(score, snapshot.searcher.doc(address)) for score, address in found.hits]
    hits = [to_hit(doc, score * _BM25_SCALE, snapshot.name) for score, doc in stored]
    if query.highlight and hits:
        maker = tantivy.SnippetGenerator.create(snapshot.searcher, matched, snapshot.schema, "text")
        maker.set_max_num_chars(_FRAGMENT_CHARS)
        hits = [
            replace(hit, highlights=_fragments(maker.snippet_from_doc(doc)))
            for hit, (_, doc) in zip(hits, stored, strict=True)
        ]
    return tuple(hits)


def _text_query(snapshot: Snapshot, query: Query) -> tantivy.Query | None:
    """Any of the words, in any of the fields; None if the text holds no word."""
    text = plain_text(query.text)
    terms = words(text)
    per_field = []
    for name, boost in boosted_fields(query.fields):
        if name in TEXT_FIELDS:
            clauses = [(tantivy.Occur.Should, _term_query(snapshot, name, term)) for term in terms]
            if not clauses:
                continue
            matched = tantivy.Query.boolean_query(clauses)
        else:  # a metadata value is one word, whole, as a keyword is
            matched = tantivy.Query.term_query(
                snapshot.schema, "facts", exact_term(name, text), "basic"
            )
        per_field.append(matched if boost == 1 else tantivy.Query.boost_query(matched, boost))
    if not per_field:
        return None
    if len(per_field) == 1:
        return per_field[0]
    return tantivy.Query.disjunction_max_query(per_field, TIE_BREAKER)


def _term_query(snapshot: Snapshot, field: str, term: str) -> tantivy.Query:
    """One word of a field, weighed as servers weigh it.

    They count only documents that have the field, tantivy counts all of them: for titles, which may
    be missing, BM25's document frequency is corrected by word, its length norm for a title of
    average length.
    """
    query = tantivy.Query.term_query(snapshot.schema, field, term)
    everything = snapshot.searcher.num_docs
    having = snapshot.searcher.doc_freq("facts", TITLED) if field == "title" else everything
    if not 0 < having < everything:
        return query
    holding = min(snapshot.searcher.doc_freq(field, term), having)
    rarity = _idf(having, holding) / _idf(everything, holding)
    norm = (1 + _K1 * (1 - _B + _B * everything / having)) / (1 + _K1)
    return tantivy.Query.boost_query(query, rarity * norm)


def _idf(documents: int, holding: int) -> float:
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def _fragments(snippet: tantivy.Snippet) -> tuple[str, ...]:
    raw = snippet.fragment().encode()
    marks = snippet.highlighted()
    if not marks:
        return ()
    parts, end = [], 0
    for mark in marks:
        parts.append(html.unescape(raw[end : mark.start].decode()))
        parts.append(f"<em>{raw[mark.start : mark.end].decode()}</em>")
        end = mark.end
    parts.append(raw[end:].decode())
    return ("".join(parts),)


def _query_vector(snapshot: Snapshot, query: Query, vector_of: Callable[[str], Matrix]) -> Matrix:
    dims = snapshot.settings.dims
    if dims is None:
        raise FieldNotFound(
            f"index {snapshot.name!r} keeps no vectors, so it can't be searched by {query.mode}",
            hint="rebuild it with an embedder (phloem index add --embed), or use mode='bm25'",
            index=snapshot.name,
            field="vector",
        )
    vector = vector_of(query.text)
    check_dims(len(vector), dims, what="the query's vector", index=snapshot.name)
    return vector


def _by_vector(
    snapshot: Snapshot, vector: Matrix, wanted: Filter | None, size: int
) -> tuple[Hit, ...]:
    addresses, rows, matrix = snapshot.vectors
    chosen = np.arange(len(rows))
    if wanted is not None:
        allowed = filter_query(wanted, snapshot.schema, snapshot.searcher)
        within = snapshot.rows(snapshot.addresses(allowed))
        chosen = np.flatnonzero(np.isin(rows, within))
        matrix = matrix[chosen]
    # einsum, not @: BLAS would start threads, which wait for each other 15 times longer than the
    # product takes when the engine keeps the cores busy.
    scores = np.einsum("ij,j->i", matrix, vector)
    best = _top(scores, size)
    return tuple(
        to_hit(
            snapshot.searcher.doc(addresses[chosen[i]]), (1 + float(scores[i])) / 2, snapshot.name
        )
        for i in best
    )


def _top(scores: Matrix, size: int) -> Sequence[int]:
    """Indices of the `size` largest scores, largest first, equal ones in order of index."""
    if size < len(scores):
        bar = np.partition(scores, len(scores) - size)[len(scores) - size]
        candidates = np.flatnonzero(scores >= bar)
    else:
        candidates = np.arange(len(scores))
    order = candidates[np.argsort(-scores[candidates], kind="stable")][:size]
    return [int(i) for i in order]


def _check_fields(snapshot: Snapshot, query: Query, wanted: Filter | None) -> None:
    """Raise `FieldNotFound` if a search found nothing because it named an unknown field."""
    if snapshot.searcher.num_docs == 0:
        return
    named = fields_of(wanted)
    if query.mode != "knn":
        named |= {name for name, _ in boosted_fields(query.fields)} - set(TEXT_FIELDS)
    for field in sorted(named):
        if not snapshot.searcher.doc_freq("facts", has_term(field)):
            facts = snapshot.searcher.terms_with_prefix("facts", "\0")
            known = [term[1:] for term, _ in facts if term != TITLED]
            matched = field in TEXT_FIELDS
            raise FieldNotFound(
                f"a filter of index {snapshot.name!r} can't ask for {field!r}, which is matched"
                if matched
                else f"index {snapshot.name!r} has no field {field!r}",
                hint="name it in fields=, or keep what is filtered by in meta"
                if matched
                else f"fields that it has: {', '.join(['text', 'title', *known[:20]])}",
                index=snapshot.name,
                field=field,
            )
