"""Traces in Elasticsearch, by way of a spool on disk.

What lives here: `ElasticSink`. What does not: names and mappings (`ecs.py`), the spool itself
(`spool.py`).

The sink's own thread only writes to the spool; a second one sends whole segments by `_bulk` and
deletes what was accepted. While the server is down, frozen or refuses, segments wait and are
tried again; documents have fixed ids and are only ever created, so a segment that arrived but
was never acknowledged writes nothing twice when it is sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import structlog
from elasticsearch import ApiError, Elasticsearch, TransportError
from elasticsearch.helpers import streaming_bulk

from phloem.errors import ConfigError
from phloem.server.trace.sinks.base import Document, Sink
from phloem.server.trace.sinks.ecs import document_of, id_of, index_of, template
from phloem.server.trace.sinks.spool import Spool

__all__ = ["PREFIX", "ElasticSink", "connect"]

log = structlog.get_logger("phloem.trace")

PREFIX = "phloem-traces"
TIMEOUT_S = 10.0
RETRY_S = (0.5, 10.0)
"""The first and the longest pause between tries."""
BUSY = frozenset({429, 502, 503, 504})
MAX_BULK = 10 * 2**20


def connect(url: str, timeout_s: float = TIMEOUT_S) -> Elasticsearch:
    """A client of the server at `url` (its credentials are taken out of the address). Raises
    `ConfigError` for what is no address."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(
            "the address of Elasticsearch must begin with http:// or https://",
            hint="es:http://localhost:9200, or `es` alone with PHLOEM_ES_URL set",
        )
    port = parts.port or (443 if parts.scheme == "https" else 9200)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = urlunsplit((parts.scheme, f"{host}:{port}", parts.path.rstrip("/"), "", ""))
    login = (parts.username, parts.password or "") if parts.username else None
    return Elasticsearch(
        address, basic_auth=login, request_timeout=timeout_s, max_retries=0, retry_on_timeout=False
    )


class ElasticSink(Sink):
    """Keeps documents in indices `PREFIX-YYYY.MM.DD`. `sent` counts those that the server has
    (accepted now, or there already), `refused` those that it will never take."""

    def __init__(
        self, url: str, spool: Path, *, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S
    ) -> None:
        host = urlsplit(url).hostname
        self.name = f"elasticsearch:{host}"
        super().__init__()
        self._client = connect(url, timeout_s)
        self._prefix = prefix
        self._spool = Spool(spool)
        self._prepared = False
        self._stop = threading.Event()
        self._sender = threading.Thread(target=self._send_all, name="sink-bulk", daemon=True)
        self.sent = self.refused = 0
        self.down = False

    def start(self) -> None:
        """Begin with what an earlier recorder left in the spool."""
        super().start()
        self._sender.start()

    def keep(self, batch: Sequence[Document]) -> None:
        """Write to the spool."""
        self._spool.add(batch)

    def close(self, seconds: float) -> bool:
        """Send what waits, for at most that long; the rest stays in the spool."""
        until = time.monotonic() + seconds
        written = super().close(seconds)
        self._stop.set()
        if self._sender.is_alive():
            self._sender.join(max(0.0, until - time.monotonic()))
        done = written and not self._sender.is_alive() and self._spool.oldest() is None
        self._spool.close()
        return done

    def _send_all(self) -> None:
        pause = RETRY_S[0]
        while True:
            stopping = self._stop.is_set()
            segment = self._spool.oldest(now=stopping)
            if segment is None:
                if stopping:
                    break
                self._stop.wait(0.05)
                continue
            try:
                self._prepare()
                self._send(segment)
            except (TransportError, ApiError) as error:
                self._report(error)
                if stopping:
                    break
                self._stop.wait(pause)
                pause = min(2 * pause, RETRY_S[1])
            else:
                segment.unlink(missing_ok=True)
                pause = RETRY_S[0]
                if self.down:
                    log.info("elasticsearch_back", sink=self.name)
                    self.down = False
        self._client.close()

    def _prepare(self) -> None:
        if not self._prepared:
            body = template(self._prefix)
            meta = body.pop("_meta")
            self._client.indices.put_index_template(name=self._prefix, meta=meta, **body)
            self._prepared = True

    def _send(self, segment: Path) -> None:
        """Send a segment. Raises if any of it must be tried again."""
        actions = (
            {
                "_op_type": "create",
                "_index": index_of(self._prefix, one),
                "_id": id_of(one),
                "_source": document_of(one),
            }
            for one in self._spool.read(segment)
        )
        replies = streaming_bulk(
            self._client, actions, max_chunk_bytes=MAX_BULK, raise_on_error=False
        )
        self._judge([reply["create"] for _, reply in replies])

    def _judge(self, outcomes: Sequence[Any]) -> None:
        if any(one["status"] in BUSY for one in outcomes):
            raise TransportError("the server was too busy for a part of a bulk request")
        # 409: it is there already.
        refused = [one for one in outcomes if one["status"] >= 300 and one["status"] != 409]
        self.sent += len(outcomes) - len(refused)
        self.refused += len(refused)
        for one in refused[:1]:
            reason = str(one.get("error"))[:300]
            log.error("document_refused", sink=self.name, refused=self.refused, reason=reason)

    def _report(self, error: Exception) -> None:
        if not self.down:
            log.warning("elasticsearch_down", sink=self.name, reason=str(error)[:300])
        self.down = True
