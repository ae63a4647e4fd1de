"""Traces out of Elasticsearch, as the sink writes them.

What lives here: `ElasticReader`. What does not: names and mappings (`sinks/ecs.py`).

A trace matches a filter if one of its documents does: an exchange, or a run's own document.
Text is matched by words, as the index has them. Pages are offsets; Elasticsearch gives no more
than the first 10,000 traces of a search, so older ones are asked for by `until`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from elasticsearch import ApiError, TransportError

from phloem.errors import ConfigError, JournalError
from phloem.server.trace.assemble import assemble
from phloem.server.trace.reader import (
    Facets,
    TraceFilter,
    TraceNotFound,
    TracePage,
    TraceSummary,
    summary_of,
)
from phloem.server.trace.record import (
    Exchange,
    RunTrace,
    exchange_from_json,
    run_from_json,
)
from phloem.server.trace.sinks.elastic import PREFIX, connect

__all__ = ["ElasticReader"]

WINDOW = 10_000
_Documents: TypeAlias = "dict[str, list[Mapping[str, Any]]]"
"""What the index holds of each group."""
_LARGE = ("phloem.text", "phloem.record.events", "phloem.record.effects", "phloem.record.graph")
"""What lists need not load."""


class ElasticReader:
    """The traces in the indices `PREFIX-*` of the server at `url`."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self._client = connect(url, timeout_s=30)
        self._index = f"{prefix}-*"

    def list(self, wanted: TraceFilter, *, limit: int = 50, cursor: str | None = None) -> TracePage:
        """See `TraceReader.list`."""
        start = _offset(cursor)
        reply = self._search(
            query=_query(wanted),
            collapse={"field": "phloem.group"},
            sort=[{"@timestamp": "desc"}, {"event.id": "asc"}],
            from_=start,
            size=limit,
            source=["phloem.group"],
            aggs={"groups": {"cardinality": {"field": "phloem.group"}}},
        )
        groups = [hit["_source"]["phloem.group"] for hit in reply["hits"]["hits"]]
        found = self._load(groups, excluded=_LARGE)
        items = tuple(found[group] for group in groups if group in found)
        total = int(reply["aggregations"]["groups"]["value"])
        more = start + limit < min(total, WINDOW)
        return TracePage(items, str(start + limit) if more else None, total)

    def get(self, trace: str) -> RunTrace:
        """See `TraceReader.get`."""
        documents = self._documents([trace], ()).get(trace)
        if not documents:
            raise TraceNotFound(f"Elasticsearch holds no trace {trace!r} in {self._index}")
        return _assembled(documents)

    def facets(self) -> Facets:
        """See `TraceReader.facets`."""
        names = {"programs": "program", "statuses": "status"}
        fields = {name: f"phloem.{field}" for name, field in names.items()}
        fields["error_types"] = "error.type"
        reply = self._search(
            size=0,
            aggs={name: {"terms": {"field": field, "size": 200}} for name, field in fields.items()},
        )
        found = {
            name: tuple(sorted(bucket["key"] for bucket in part["buckets"]))
            for name, part in reply.get("aggregations", {}).items()
        }
        return Facets(**found)

    def _load(self, groups: Sequence[str], excluded: Sequence[str]) -> dict[str, TraceSummary]:
        found = {}
        for group, documents in self._documents(groups, excluded).items():
            line = summary_of(_assembled(documents))
            steps = next((one["phloem.steps"] for one in documents if "phloem.steps" in one), None)
            found[group] = line if steps is None else replace(line, steps=steps)
        return found

    def _documents(self, groups: Sequence[str], excluded: Sequence[str]) -> _Documents:
        found: _Documents = {}
        if groups:
            reply = self._search(
                query={"bool": {"filter": [{"terms": {"phloem.group": list(groups)}}]}},
                size=WINDOW,
                source_excludes=list(excluded) or None,
            )
            for hit in reply["hits"]["hits"]:
                source = hit["_source"]
                found.setdefault(source["phloem.group"], []).append(source)
        return found

    def _search(self, **asked: Any) -> Any:
        with _explained():
            return self._client.search(
                index=self._index, ignore_unavailable=True, allow_no_indices=True, **asked
            ).body


def _assembled(documents: Sequence[Mapping[str, Any]]) -> RunTrace:
    run: RunTrace | None = None
    exchanges: list[Exchange] = []
    for document in documents:
        record = document["phloem.record"]
        if document["phloem.document"] == "exchange":
            exchanges.append(exchange_from_json(record))
        else:
            one = run_from_json(record)
            run = one if run is None or one.attempt > run.attempt else run
    return assemble(run, exchanges)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdecimal():
        raise ConfigError(f"{cursor!r} is no cursor", hint="take the `next` of a former page")
    return int(cursor)


def _query(wanted: TraceFilter) -> dict[str, Any]:
    equal = {
        "phloem.program": wanted.program,
        "phloem.status": wanted.status,
        "phloem.kind": wanted.kind,
        "error.type": wanted.error_type,
    }
    filters: list[dict[str, Any]] = [
        {"term": {name: value}} for name, value in equal.items() if value is not None
    ]
    took = {"gte": wanted.min_ms, "lte": wanted.max_ms}
    if any(value is not None for value in took.values()):
        filters.append({"range": {"phloem.duration_ms": _known(took)}})
    at = {"gte": _date(wanted.since), "lt": _date(wanted.until)}
    if any(value is not None for value in at.values()):
        filters.append({"range": {"@timestamp": _known(at)}})
    if wanted.text is not None:
        words = {"query": wanted.text, "operator": "and"}
        either = [{"match": {"phloem.text": words}}, {"term": {"phloem.group": wanted.text}}]
        filters.append({"bool": {"should": either, "minimum_should_match": 1}})
    return {"bool": {"filter": filters}} if filters else {"match_all": {}}


def _known(bounds: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bounds.items() if value is not None}


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (ApiError, TransportError) as error:
        raise JournalError(
            f"Elasticsearch can't be searched for traces: {str(error)[:300]}",
            hint="check the address, and that `phloem trace-proxy --to es:URL` has written to it",
        ) from error
