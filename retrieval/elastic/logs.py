"""Keeps credentials out of the clients' own debug logs.

What lives here: a filter on their loggers. What does not: phloem's messages, which are scrubbed
where they are made (`transport.py`, `failures.py`). The clients hide the headers they send, but
log the bodies they receive, and a server may quote a header in its refusal.
"""

from __future__ import annotations

import logging
import threading

from phloem.retrieval.elastic.address import Address

__all__ = ["scrub_client_logs"]

_LOGGERS = (
    "elastic_transport.node",
    "elastic_transport.node_pool",
    "elastic_transport.transport",
    "elasticsearch",
    "opensearch",
    "opensearchpy.trace",
)


class _Scrubber(logging.Filter):
    """Masks the credentials of every address that this process has connected to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: tuple[Address, ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for address in self.addresses:
            text = address.scrub(text)
        record.msg, record.args = text, ()
        return True


_scrubber = _Scrubber()
_lock = threading.Lock()


def scrub_client_logs(address: Address) -> None:
    """From now on the clients' loggers mask the credentials of `address`."""
    with _lock:
        if address in _scrubber.addresses:
            return
        _scrubber.addresses += (address,)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_scrubber)  # adding it twice changes nothing
