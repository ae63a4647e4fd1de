"""No secret, given wherever, is in any sink, spool or log: a canary in each place."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from elasticsearch import Elasticsearch

from tests.retrieval.conftest import TestServer, free_port
from tests.server.trace.support import send, until
from tests.server.trace.upstreams import scripted

HEADER, COOKIE, QUERY = "canary header 1111", "canary-cookie-2222", "canary-query-3333"
FIELD, ENVIRONMENT, PASSWORD = "canary-field-4444", "canary/environment-5555", "canary-url-6666"
OWN, FORM = "canaryown7777", "canary-form-8888"
ALL = (HEADER, COOKIE, QUERY, FIELD, ENVIRONMENT, PASSWORD, OWN, FORM)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[TestServer]:
    server = TestServer(tmp_path / "noida")
    yield server
    server.stop()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An address that takes spans, and what came there."""
    found: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", found
    server.shutdown()
    thread.join()
    server.server_close()


def requests() -> list[bytes]:
    """Each secret in its place, to answers that tell all of them again."""
    found = []
    for path in ("/mirror/1", "/mirror/stream"):
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "password": FIELD,
                           "deep": [{"client_secret": FIELD}], "note": f"see {OWN}"})  # fmt: skip
        for kind, text in (("json", body), ("x-www-form-urlencoded", f"a=b&passwd={FORM}")):
            head = f"POST {path}?api_key={QUERY}&x=1 HTTP/1.1\r\nhost: h\r\n"
            if path.endswith("stream"):
                head = f"POST {path} HTTP/1.1\r\nhost: h\r\n"
            head += f"authorization: Bearer {HEADER}\r\nx-api-key: {HEADER}\r\n"
            head += f"cookie: sid={COOKIE}; theme=x\r\ncontent-type: application/{kind}\r\n"
            head += f"connection: close\r\ncontent-length: {len(text)}\r\n\r\n"
            found.append(head.encode() + text.encode())
    return found


def test_no_canary_in_any_sink_or_log(
    tmp_path: Path, search: TestServer, collector: tuple[str, list[bytes]]
) -> None:
    """Header, cookie, query, field, form, environment, the address of a sink, an own pattern:
    none of them is in JSONL, Elasticsearch, its spool, OTLP, standard output or the log."""
    spans, sent = collector
    port = free_port()
    host = search.url.removeprefix("http://")
    environment = {
        **os.environ,
        "SOME_API_KEY": ENVIRONMENT,
        "PHLOEM_ES_URL": f"http://bob:{PASSWORD}@{host}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with scripted() as upstream, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"es:http://bob:{PASSWORD}@127.0.0.1:{unused.getsockname()[1]}"
        upstream.secrets = [ENVIRONMENT, PASSWORD, base64.b64encode(ENVIRONMENT.encode()).decode()]
        sinks = [f"jsonl:{tmp_path / 'jsonl'}", "es", dead, f"otlp:{spans}", "stdout"]
        command = [str(Path(sysconfig.get_path("scripts")) / "phloem"), "trace-proxy"]
        command += ["--upstream", upstream.url, "--listen", f"127.0.0.1:{port}"]
        command += ["--redact", r"canaryown\d+", "--log-level", "debug"]
        command += [word for sink in sinks for word in ("--to", sink)]
        out, log = (tmp_path / "out").open("wb"), (tmp_path / "log").open("wb")
        with subprocess.Popen(command, env=environment, stdout=out, stderr=log) as proxy:
            until(lambda: listens(port))
            for request in requests():
                assert ENVIRONMENT.encode() in send(f"http://127.0.0.1:{port}", request) or (
                    b"stream" in request
                )
            client = Elasticsearch(search.url)
            until(lambda: stored(client) == 4, 60)
            proxy.send_signal(signal.SIGTERM)
            proxy.wait(60)
        out.close()
        log.close()
    places = {"elasticsearch": json.dumps(everything_in(client)).encode(), "otlp": b"".join(sent)}
    for path in tmp_path.rglob("*"):
        if path.is_file() and "noida" not in path.parts:
            places[str(path.relative_to(tmp_path))] = path.read_bytes()
    spooled = [name for name in places if "trace-spool" in name and name.endswith(".jsonl")]
    assert spooled, places.keys()
    assert b"invalid_api_key" in places["elasticsearch"]
    assert b"invalid_api_key" in places["out"]
    assert b"elasticsearch_down" in places["log"]
    assert sent
    for name, content in places.items():
        for secret in ALL:
            for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
                assert form.encode() not in content, f"{form!r} is in {name}"
            encoded = base64.b64encode(secret.encode()).rstrip(b"=")
            assert encoded not in content, f"{secret!r} is in {name} as base64"


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def stored(client: Elasticsearch) -> int:
    client.indices.refresh(index="phloem-traces-*")
    found = client.search(index="phloem-traces-*", size=100, ignore_unavailable=True)
    return len(found["hits"]["hits"])


def everything_in(client: Elasticsearch) -> Any:
    return client.search(index="phloem-traces-*", size=1000).body
