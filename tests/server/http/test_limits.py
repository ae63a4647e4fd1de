"""Limits of the server: places, queue, sizes, headers, rates, keys."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from phloem.errors import ConfigError
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.server.http.keys import hash_key
from phloem.server.http.rate import RateLimit
from tests.server.harness import Running, chunks, serving
from tests.server.programs.samples import PROGRAMS

Start = Callable[..., AbstractContextManager[Running]]


@pytest.mark.parametrize(
    ("engine", "gate", "served"),
    [
        ({}, {"max_running": 2, "max_queued": 4}, 6),
        # A run may be refused its second step here.
        ({"max_running": 2, "queue_limit": 4}, {}, 1),
    ],
)
def test_every_request_of_a_burst_gets_an_answer(
    engine: dict[str, int], gate: dict[str, int], served: int
) -> None:
    """60 requests and runs at 2 places and a queue of 4, the server's or the engine's, are each
    served in full or refused."""
    backend = EmbeddedBackend(tiny_model(), **engine)
    with serving(backend, PROGRAMS, early_headers_s=600, **gate) as server:

        def one(number: int) -> int:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                if number % 2:
                    args = {"args": {"topic": str(number)}}
                    reply = client.post("/v1/programs/story/runs", json=args)
                else:
                    body = server.chat_body(max_tokens=20, stream=True, ignore_eos=True)
                    reply = client.post("/v1/chat/completions", json=body)
            if reply.status_code == 503:
                assert int(reply.headers["retry-after"]) >= 1
                assert reply.json()["error"]["type"] == "overloaded_error"
            elif number % 2:
                assert reply.json()["usage"]["generated"] == 18
            else:
                assert len(chunks(reply.text)) > 2
            return reply.status_code

        with ThreadPoolExecutor(60) as pool:
            statuses = list(pool.map(one, range(60)))
        assert statuses.count(200) + statuses.count(503) == 60
        assert statuses.count(200) >= served
        server.wait_idle()
        assert server.metric("phloem_requests_running") == 0
        assert server.metric("phloem_requests_queued") == 0
        assert server.chat().status_code == 200


def test_a_client_that_goes_away_frees_its_place(start: Start) -> None:
    """Streams, plain requests and queued ones end when their socket closes, far from the end."""
    with start(max_running=2) as server:
        long = server.chat_body(max_tokens=3500, ignore_eos=True)
        clients = []
        for stream in (True, True, False, False):
            body = httpx.Request("POST", server.url, json={**long, "stream": stream}).content
            client = socket.create_connection(server.address)
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
            )
            if stream:
                client.recv(1000)
            clients.append(client)
        for client in clients:
            client.close()
        assert server.chat(max_tokens=5).status_code == 200
        server.wait_idle(5)
        reason = {"kind": "chat", "reason": "abort"}
        assert server.metric("phloem_requests_finished_total", **reason) == 4
        assert server.metric("phloem_tokens_total", part="generated") < 2000


def test_a_half_closed_socket_ends_its_request(server: Running) -> None:
    """A client that shuts its sending side down is gone; the server goes on."""
    with socket.create_connection(server.address) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
        )
        client.shutdown(socket.SHUT_WR)
        client.recv(1000)
    assert server.chat().status_code == 200


def refusal(client: socket.socket) -> bytes:
    """An error's reply, up to the end of its body."""
    taken = b""
    while b"}}" not in taken and (more := client.recv(2000)):
        taken += more
    return taken


def test_a_body_over_the_limit_is_refused_unread(server: Running) -> None:
    """100 MB get a 413 at their announcement, and a body that hides its size when it is over."""
    announced = server.client.build_request(
        "POST", "/v1/chat/completions", content=b"{}", headers={"content-type": "application/json"}
    )
    announced.headers["content-length"] = str(100 * 2**20)
    with socket.create_connection(server.address) as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in announced.headers.items())
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode())
        refused = refusal(client)
        assert refused.startswith(b"HTTP/1.1 413")
        assert b'"code":"body_too_large"' in refused

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(server.address) as client:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            client.sendall(b"100000\r\n" + b" " * 2**20 + b"\r\n")
        refused = refusal(client)
        assert refused.startswith(b"HTTP/1.1 413")
        assert b'"code":"body_too_large"' in refused
    assert server.chat().status_code == 200


def test_a_flood_of_headers_is_refused(server: Running) -> None:
    """More than 32 KiB of headers are a 4xx."""
    with socket.create_connection(server.address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        answer = b""
        try:
            for number in range(4000):
                client.sendall(f"X-{number}: {'y' * 100}\r\n".encode())
            answer = client.recv(1000)
        except OSError:
            pass
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.client.get("/health").status_code == 200


def test_keys_are_asked_for_and_compared_by_hash(start: Start, tmp_path: Path) -> None:
    """With a key file only its keys get in, probes excepted; the reply never shows a key."""
    file = tmp_path / "keys"
    file.write_text("# keys\n" + hash_key("alice", "sk-alice") + "\n")
    with start(api_key_file=file, api_key="sk-second") as server:
        body = server.chat_body()
        for key, status in (("sk-alice", 200), ("sk-second", 200), ("sk-bob-DO-NOT-LOG", 401)):
            reply = server.client.post(
                "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
            )
            assert reply.status_code == status
            assert "DO-NOT-LOG" not in reply.text
        reply = server.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/openapi.json").status_code == 401


def test_a_key_file_with_a_plain_key_is_refused_without_showing_it(
    start: Start, tmp_path: Path
) -> None:
    """A line that is not a hash stops the start, and the message does not repeat it."""
    file = tmp_path / "keys"
    file.write_text("sk-plain-DO-NOT-LOG\n")
    with pytest.raises(ConfigError, match="line 1") as caught, start(api_key_file=file):
        pass
    assert "DO-NOT-LOG" not in str(caught.value)


def test_isolated_keys_share_no_kv(start: Start, tmp_path: Path) -> None:
    """With isolate_keys a prompt cached for one key is not cached for another."""
    file = tmp_path / "keys"
    file.write_text(hash_key("a", "ka") + "\n" + hash_key("b", "kb") + "\n")
    with start(api_key_file=file, isolate_keys=True) as server:

        def cached(key: str) -> int:
            reply = server.client.post(
                "/v1/chat/completions",
                json=server.chat_body(),
                headers={"authorization": f"Bearer {key}"},
            )
            found: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return found

        assert [cached("ka") > 0, cached("ka") > 0, cached("kb") > 0] == [False, True, False]


def test_rates_are_limited_per_caller(start: Start) -> None:
    """Over requests_per_minute a caller gets 429 with Retry-After; probes don't count."""
    with start(requests_per_minute=3) as server:
        statuses = [server.client.get("/v1/models").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert int(server.client.get("/v1/models").headers["retry-after"]) >= 1
        assert server.client.get("/health").status_code == 200


def test_a_bucket_fills_again_with_time() -> None:
    """A caller that waits may go on, up to the bucket's size."""
    now = 0.0
    limit = RateLimit(60, clock=lambda: now)
    assert [limit.wait_s("a") for _ in range(61)] == [0] * 60 + [1]
    assert limit.wait_s("b") == 0
    now = 2.0
    assert [limit.wait_s("a") for _ in range(3)] == [0, 0, 1]
    now = 1e6
    assert [limit.wait_s("a") for _ in range(61)] == [0] * 60 + [1]


def test_a_slow_reader_is_cut_off_and_its_place_is_free(start: Start) -> None:
    """A reader that takes nothing holds no place once the engine is done with its request."""
    with start(max_running=1, send_timeout_s=0.5) as server:
        content = httpx.Request(
            "POST",
            server.url,
            json=server.chat_body(
                max_tokens=3000, ignore_eos=True, stream=True, logprobs=True, top_logprobs=20
            ),
        ).content
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.address)
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                b"\r\nContent-Length: " + str(len(content)).encode() + b"\r\n\r\n" + content
            )
            done = threading.Event()
            threading.Thread(target=lambda: (server.wait_idle(30), done.set())).start()
            assert done.wait(30)
        assert server.chat().status_code == 200


def test_concurrency_per_key(start: Start, tmp_path: Path) -> None:
    """Over concurrent_requests a key's next request gets 429 with Retry-After, other keys and reads
    go on, and a place is free as soon as a request is over, or its client is gone."""
    keys = {"ann": "sk-ann-0123456789", "bob": "sk-bob-0123456789"}
    file = tmp_path / "keys"
    file.write_text("\n".join(hash_key(name, key) for name, key in keys.items()))
    with start(concurrent_requests=1, api_key_file=file) as server:
        body = server.chat_body(max_tokens=400, stream=True, ignore_eos=True)
        ann, bob = ({"authorization": f"Bearer {key}"} for key in keys.values())

        def chat(headers: dict[str, str]) -> httpx.Response:
            short = server.chat_body()
            return server.client.post("/v1/chat/completions", json=short, headers=headers)

        with server.client.stream(
            "POST", "/v1/chat/completions", json=body, headers=ann
        ) as streaming:
            # Kept: an iterator that is given up closes its stream.
            lines = streaming.iter_lines()
            next(lines)
            refused = chat(ann)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["code"] == "too_many_at_once"
            assert server.client.get("/v1/models", headers=ann).status_code == 200
            assert chat(bob).status_code == 200
        until = time.monotonic() + 10
        while (again := chat(ann)).status_code == 429 and time.monotonic() < until:
            time.sleep(0.05)
        assert again.status_code == 200
        assert chat(ann).status_code == 200
