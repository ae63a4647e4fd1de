"""Trace documents as Elasticsearch keeps them: ECS names where they exist, `phloem.*` else.

What lives here: the index template, the index and the id of a document, and its searchable
fields. What does not: sending (`elastic.py`) and reading (`readers/elastic.py`).

Names: https://www.elastic.co/docs/reference/ecs. The document itself is kept whole in
`phloem.record`, which is stored and not indexed; the fields beside it are for searching and for
dashboards. Indices are dated by when the exchange began, not data streams: an id is unique in an
index only, and a document that is sent again days later must meet itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from phloem.server.trace.assemble import assemble, haystack
from phloem.server.trace.reader import summary_of
from phloem.server.trace.record import exchange_from_json, run_from_json
from phloem.server.trace.sinks.base import Document

__all__ = ["document_of", "id_of", "index_of", "template"]

LAYOUT = 1
_KEYWORD = {"type": "keyword", "ignore_above": 1024}


def template(prefix: str) -> dict[str, Any]:
    """The composable index template of indices `PREFIX-*`."""
    names = (
        "event.id", "event.kind", "event.outcome", "trace.id", "http.request.method",
        "http.request.id", "url.path", "client.address", "service.address", "error.type",
        "gen_ai.request.model", "phloem.document", "phloem.group", "phloem.kind", "phloem.status",
        "phloem.program", "phloem.parent", "phloem.finish_reason", "phloem.constraint",
    )  # fmt: skip
    properties: dict[str, Any] = dict.fromkeys(names, _KEYWORD)
    properties |= {
        "@timestamp": {"type": "date"},
        "event.duration": {"type": "long"},
        "http.response.status_code": {"type": "integer"},
        "http.request.body.bytes": {"type": "long"},
        "http.response.body.bytes": {"type": "long"},
        "gen_ai.usage.input_tokens": {"type": "long"},
        "gen_ai.usage.output_tokens": {"type": "long"},
        "error.message": {"type": "text"},
        "phloem.first_byte_ms": {"type": "float"},
        "phloem.duration_ms": {"type": "float"},
        "phloem.steps": {"type": "integer"},
        "phloem.text": {"type": "text"},
        "phloem.record": {"type": "object", "enabled": False},
    }
    return {
        "index_patterns": [f"{prefix}-*"],
        "template": {
            "settings": {"index": {"number_of_replicas": "0", "refresh_interval": "1s"}},
            "mappings": {"dynamic": False, "properties": properties},
        },
        "priority": 200,
        "version": LAYOUT,
        "_meta": {"description": "traces of phloem"},
    }


def index_of(prefix: str, document: Mapping[str, Any]) -> str:
    """The index of the day on which the document's exchange or run began."""
    return f"{prefix}-{datetime.fromtimestamp(document['started'], UTC):%Y.%m.%d}"


def id_of(document: Mapping[str, Any]) -> str:
    """The same for the same document, whenever it is sent. A run that was resumed is another
    document for each attempt."""
    if document["document"] == "exchange":
        return f"exchange-{document['id']}"
    return f"run-{document['id']}-{document['attempt']}"


def document_of(document: Document) -> dict[str, Any]:
    """What is sent: fields by their dotted names, without those that have no value."""
    plain = {name: value for name, value in document.items() if name != "document"}
    own = _exchange(plain) if document["document"] == "exchange" else _run(plain)
    return {name: value for name, value in own.items() if value is not None} | {
        "@timestamp": datetime.fromtimestamp(document["started"], UTC).isoformat(),
        "phloem.document": document["document"],
        "phloem.record": plain,
    }


def _exchange(plain: Mapping[str, Any]) -> dict[str, Any]:
    one = exchange_from_json(plain)
    usage = one.usage or {}
    error = one.errors[-1] if one.errors else None
    return {
        "event.id": one.id,
        "event.kind": "event",
        "event.outcome": _OUTCOMES.get(one.outcome, "unknown"),
        "event.duration": int(one.timing.total_ms * 1e6),
        "trace.id": one.trace_id,
        "http.request.method": one.method,
        "http.request.id": one.request_id,
        "http.request.body.bytes": one.request.size,
        "http.response.status_code": one.status,
        "http.response.body.bytes": one.response.size,
        "url.path": one.path,
        "client.address": one.client,
        "service.address": one.upstream,
        "error.type": error.type if error else None,
        "error.message": error.message if error else None,
        "gen_ai.request.model": one.model,
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        "phloem.group": one.group,
        "phloem.kind": one.group_kind,
        "phloem.status": one.outcome,
        "phloem.program": one.program,
        "phloem.finish_reason": one.finish_reason,
        "phloem.constraint": one.constraint["kind"] if one.constraint else None,
        "phloem.first_byte_ms": one.timing.first_byte_ms,
        "phloem.duration_ms": one.timing.total_ms,
        "phloem.text": haystack(assemble(None, [one])),
    }


def _run(plain: Mapping[str, Any]) -> dict[str, Any]:
    run = run_from_json(plain)
    line = summary_of(run)
    usage = run.usage or {}
    return {
        "event.id": run.id,
        "event.kind": "event",
        "event.outcome": _OUTCOMES.get(run.status, "unknown"),
        "event.duration": int(run.duration_ms * 1e6) if run.duration_ms is not None else None,
        "trace.id": run.trace_id,
        "error.type": line.error_type,
        "error.message": line.error_message,
        "gen_ai.usage.input_tokens": usage.get("prompt"),
        "gen_ai.usage.output_tokens": usage.get("generated"),
        "phloem.group": run.id,
        "phloem.kind": "run",
        "phloem.status": run.status,
        "phloem.program": run.program,
        "phloem.parent": run.parent,
        "phloem.duration_ms": run.duration_ms,
        "phloem.steps": line.steps,
        "phloem.text": haystack(run),
    }


_OUTCOMES = {"succeeded": "success", "failed": "failure"}
