"""What a trace proxy is told: where to listen, what is behind it, what to record and where.

What lives here: `Options`, which both processes get, and the reading of addresses and sinks.
What does not: the command line (`server/cli/trace.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from phloem.errors import ConfigError
from phloem.server.trace.relay.requests import Upstream

__all__ = ["Options", "SinkSpec", "parse_listen", "parse_sink", "parse_upstream"]

SINKS = "jsonl:FOLDER, es:URL (or es with PHLOEM_ES_URL), otlp, otlp:URL, stdout"


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A sink by kind and address. The address may hold a password: it is never shown."""

    kind: str
    address: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes are bytes, times seconds. `bodies` is the share of bodies to record, 0 to 1."""

    upstream: Upstream
    sinks: tuple[SinkSpec, ...]
    host: str = "127.0.0.1"
    port: int = 8100
    bodies: float = 1.0
    max_body: int = 2 * 2**20
    redact: tuple[str, ...] = ()
    spool: Path | None = None
    drain_s: float = 10.0
    grace_s: float = 3.0
    log_level: str = "info"

    def spool_of(self, address: str) -> Path:
        """The spool of an Elasticsearch: one folder for each server."""
        parts = urlsplit(address)
        name = hashlib.sha256(f"{parts.hostname}:{parts.port}".encode()).hexdigest()[:12]
        return (self.spool or default_spool(os.environ)) / name


def default_spool(environment: Mapping[str, str]) -> Path:
    """Below the user's state folder (the XDG base directory specification)."""
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "phloem" / "trace-spool"


def parse_upstream(url: str) -> Upstream:
    """The server of an address. Raises `ConfigError`."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ConfigError(
            f"{parts.scheme}://{parts.hostname} is no upstream",
            hint="--upstream takes an address such as http://127.0.0.1:8000",
        )
    if parts.username or parts.query or parts.fragment:
        raise ConfigError(
            "the upstream's address may hold a host, a port and a path only",
            hint="clients send their own keys; the proxy adds none",
        )
    tls = parts.scheme == "https"
    return Upstream(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `:PORT` or `PORT`. Raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address", hint="--listen takes HOST:PORT")
    return host, int(port)


def parse_sink(text: str, environment: Mapping[str, str]) -> SinkSpec:
    """The sink that an option names. Raises `ConfigError`."""
    kind, _, address = text.partition(":")
    if kind in {"es", "elasticsearch"}:
        address = address or environment.get("PHLOEM_ES_URL", "")
        if urlsplit(address).scheme in {"http", "https"}:
            return SinkSpec("es", address)
        raise ConfigError(
            "the sink es needs the address of Elasticsearch",
            hint="es:http://localhost:9200, or `es` with PHLOEM_ES_URL set (keeps a password off "
            "the command line)",
        )
    if (kind == "jsonl" and address) or kind in {"otlp", "stdout"}:
        return SinkSpec(kind, address)
    raise ConfigError(f"there is no sink {kind!r}", hint=f"--to takes {SINKS}")
