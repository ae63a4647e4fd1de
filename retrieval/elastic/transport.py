"""The seam below the search logic: one HTTP exchange through an official client.

What lives here: the protocol, its reply, and its failures as retrieval errors. What does not:
the clients (`elasticsearch_client.py`, `opensearch_client.py`), retries and meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from phloem.errors import IncompatibleServer, RetrievalTimeout, RetrievalUnavailable
from phloem.retrieval.elastic.address import Address

__all__ = [
    "CONNECTIONS",
    "Reply",
    "Transport",
    "not_json",
    "part",
    "timed_out",
    "unreachable",
    "untrusted",
]


CONNECTIONS = 64
"""Connections to one server; a search that finds none free waits within its own timeout."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered: any status, its body decoded from JSON where it is JSON."""

    status: int
    body: Any


class Transport(Protocol):
    """One official client. Used from the event loop that it was made in."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any],
        body: Any,
        headers: Mapping[str, str],
    ) -> Reply:
        """One exchange, never retried. `body` is a mapping (JSON), a list (NDJSON) or None.

        It has no time limit of its own: the caller cancels it. Raises `RetrievalUnavailable` or
        `IncompatibleServer`; every HTTP status is a reply.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


# The functions below make the errors of both clients. They keep the text of what happened but
# not the client's exception: it may quote headers, or what a server echoed of them.


def timed_out(address: Address, index: str, seconds: float) -> RetrievalTimeout:
    """The server took the request and did not answer in time."""
    return RetrievalTimeout(
        f"no complete answer from {address} for index {index!r} within {seconds:g} s",
        hint="raise timeout=, or check that the server is healthy",
        kind="timeout",
        index=index,
        timeout_s=seconds,
    )


def unreachable(address: Address, why: object) -> RetrievalUnavailable:
    """No connection, or a broken one."""
    return RetrievalUnavailable(
        f"can't reach {address}: {address.scrub(str(why))}",
        hint="check the URL (PHLOEM_ES_URL) and that the server runs",
        kind="unreachable",
    )


def untrusted(address: Address, why: object) -> RetrievalUnavailable:
    """The TLS handshake failed."""
    return RetrievalUnavailable(
        f"no secure connection to {address}: {address.scrub(str(why))}",
        hint="give the certificate authority's file (ca_file=, PHLOEM_ES_CA)",
        kind="tls",
    )


def not_json(address: Address, status: int, text: object) -> IncompatibleServer:
    """Something between here and the server, or another server, answered in another language."""
    start = address.scrub(str(text))[:80].replace("\n", " ")
    return IncompatibleServer(
        f"{address} answered {status} with something that is not JSON: {start!r}",
        hint="a proxy or another service may be answering there; check the URL",
        kind="not-json",
    )


def part(address: Address, body: Any, *names: str) -> Any:
    """What lies in an answer under these names; an answer without it is another service's."""
    found = body
    for name in names:
        if not isinstance(found, Mapping) or name not in found:
            start = address.scrub(str(body))[:80]
            raise IncompatibleServer(
                f"{address} answered without {'.'.join(names)!r}: {start!r}",
                hint="a proxy or another service may be answering there; check the URL",
                kind="not-json",
            )
        found = found[name]
    return found
