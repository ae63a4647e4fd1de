"""What a server's refusal means, as an error of the right class.

What lives here: statuses and reasons to `RetrievalError`s, and the marks of partial results.
What does not: failures without a reply (`transport.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phloem.errors import (
    IncompatibleServer,
    IndexNotFound,
    PartialResults,
    RetrievalError,
    RetrievalRefused,
    RetrievalUnavailable,
)
from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.transport import Reply, not_json

__all__ = ["BUSY", "failure_of", "partial_causes", "reason_of", "whole"]

BUSY = frozenset({429, 502, 503, 504})
"""Statuses that say "later": these are retried while time remains."""

_MAX_REASON = 300


def reason_of(body: Any) -> tuple[str, str]:
    """The type and the reason that an error body gives, most specific cause first."""
    error = body.get("error", "") if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return "", str(error)[:_MAX_REASON]
    roots = error.get("root_cause") or [error]
    cause = error.get("caused_by") or roots[0]
    kind = str(roots[0].get("type", ""))
    return kind, str(cause.get("reason") or error.get("reason", ""))[:_MAX_REASON]


def failure_of(reply: Reply, address: Address, index: str) -> RetrievalError | None:
    """The error that `reply` to a call about `index` means, or None if it is a success."""
    status, body = reply.status, reply.body
    if 200 <= status < 300:
        return None if isinstance(body, Mapping | list) else not_json(address, status, body)
    kind, reason = reason_of(body)
    reason = address.scrub(reason)
    said = f"{address} answered {status} for index {index!r}: {reason or kind or 'no reason given'}"
    details: dict[str, Any] = {"index": index, "status": status, "reason": reason}
    if status in (401, 403):
        return RetrievalRefused(
            said, hint="check the API key or user and password", kind="auth", **details
        )
    if status == 406 or "media_type" in kind or "Accept version must be" in reason:
        return IncompatibleServer(
            f"the server at {address} is of another major version than the client: {reason}",
            hint="install the client of the server's version: pip install 'elasticsearch>=8,<9'",
            kind="version",
            **details,
        )
    if kind in ("index_not_found_exception", "aliases_not_found_exception"):
        return IndexNotFound(
            f"no index {index!r} at {address}",
            hint=f"phloem index add PATH... --index {index}",
            kind="index",
            **details,
        )
    if status in BUSY or status >= 500:
        return RetrievalUnavailable(
            said, hint="the server is overloaded or failing; try later", kind="server", **details
        )
    if not isinstance(body, Mapping):
        return not_json(address, status, body)
    return RetrievalError(said, kind="request", error_type=kind, **details)


def partial_causes(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the hits in `body` are not all that a whole search would have found."""
    causes = []
    if body.get("timed_out"):
        causes.append("the search timed out on the server")
    shards = body.get("_shards", {})
    total, failed = shards.get("total", 0), shards.get("failed", 0)
    if failed:
        reasons = {reason_of({"error": f.get("reason", "")})[1] for f in shards.get("failures", [])}
        why = f" ({'; '.join(sorted(filter(None, reasons)))})" if any(reasons) else ""
        causes.append(f"{failed} of {total} shards failed{why}")
    missing = total - failed - shards.get("successful", total)
    if missing > 0:
        causes.append(f"{missing} of {total} shards did not answer")
    return tuple(causes)


def whole(body: Mapping[str, Any], index: str, address: Address, done: str) -> None:
    """Raise `PartialResults` for an answer that speaks for a part of the index only."""
    causes = partial_causes(body)
    if causes:
        raise PartialResults(
            f"{address} {done} only part of index {index!r}: {'; '.join(causes)}",
            hint="try again when all shards of the index are there",
            index=index,
            causes=causes,
        )
