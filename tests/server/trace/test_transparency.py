"""What a client gets through the proxy is what it gets without: the same bytes."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from phloem.server.trace.readers.jsonl import JsonlReader
from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS
from tests.server.trace.support import address, everything, jsonl, proxying, receive, send, until
from tests.server.trace.upstreams import Scripted, scripted

KINDS = ("echo", "error", "empty", "interim", "close", "broken", "stream", "stream", "endless")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


def request(kind: str, seed: int, *, close: bool = True) -> bytes:
    chance = random.Random(seed)
    body = chance.randbytes(chance.choice([0, 10, 5000]))
    end = "connection: close\r\n" if close else ""
    head = f"POST /{kind}/{seed} HTTP/1.1\r\nhost: h\r\nX-Case:  Odd \r\n{end}"
    if chance.random() < 0.5:
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunk + b"0\r\n\r\n"


def exchange(url: str, kind: str, seed: int) -> bytes:
    """What a client sees; one that asks for an endless stream goes away after a while."""
    with socket.create_connection(address(url), timeout=30) as connection:
        connection.sendall(request(kind, seed))
        return receive(connection, 400 if kind == "endless" else None)


def test_200_mixed_requests_are_the_same_to_the_byte(upstream: Scripted, tmp_path: Path) -> None:
    """Streams with odd chunks and trailers, errors, broken answers, interim responses, answers
    that end with the connection, and cancels: both sides see the same bytes as without proxy."""
    cases = [(KINDS[seed % len(KINDS)], seed) for seed in range(200)]
    direct = [exchange(upstream.url, *case) for case in cases]
    asked = sorted(upstream.seen)
    upstream.seen.clear()
    gone = upstream.gone
    with proxying(upstream.url, jsonl(tmp_path)) as url:
        assert [exchange(url, *case) for case in cases] == direct
        until(lambda: upstream.gone == 2 * gone)
    host = upstream.url.removeprefix("http://").encode()
    assert sorted(one.replace(b"host: " + host, b"host: h") for one in upstream.seen) == asked
    traces = everything(JsonlReader(tmp_path))
    exchanges = [one for trace in traces for one in trace.exchanges]
    assert len(exchanges) == 200
    by_kind = {kind: {e.outcome for e in exchanges if f"/{kind}/" in e.path} for kind in KINDS}
    assert by_kind["endless"] == {"cancelled"}
    assert by_kind["broken"] == by_kind["error"] == {"failed"}
    for kind in ("echo", "empty", "interim", "close", "stream"):
        assert by_kind[kind] == {"succeeded"}, kind


def test_requests_in_a_row_and_pipelined(upstream: Scripted, tmp_path: Path) -> None:
    """Keep-alive and pipelining are the upstream's own: one connection stays one connection."""
    several = b"".join(request("echo", seed, close=False) for seed in range(5))
    upstream.seen.clear()
    with (
        proxying(upstream.url, jsonl(tmp_path)) as url,
        socket.create_connection(address(url), timeout=30) as connection,
    ):
        connection.sendall(several)
        connection.shutdown(socket.SHUT_WR)
        came = receive(connection)
    assert came == send_and_end(upstream.url, several)
    assert len(upstream.seen) == 2
    exchanges = [one for trace in everything(JsonlReader(tmp_path)) for one in trace.exchanges]
    assert sorted(one.path for one in exchanges) == [f"/echo/{seed}" for seed in range(5)]
    assert all(one.status == 200 for one in exchanges)


def send_and_end(url: str, data: bytes) -> bytes:
    with socket.create_connection(address(url), timeout=30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return receive(connection)


def test_a_large_body_passes_whole_and_is_kept_in_part(upstream: Scripted, tmp_path: Path) -> None:
    """8 MB there and back; the record has the size and the beginning."""
    body = random.Random(1).randbytes(8 * 2**20).replace(b"\0", b"0")
    head = f"POST /echo/1 HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n"
    reply = f"{len(body)}:".encode() + body
    with (
        proxying(upstream.url, jsonl(tmp_path), max_body=1000) as url,
        socket.create_connection(address(url), timeout=60) as connection,
    ):
        sender = threading.Thread(target=connection.sendall, args=(head.encode() + body,))
        sender.start()
        begin, _, rest = receive(connection, 100).partition(b"\r\n\r\n")
        came = rest + receive(connection, len(reply) - len(rest))
        sender.join()
    assert begin.startswith(b"HTTP/1.1 200 OK")
    assert came == reply
    [trace] = everything(JsonlReader(tmp_path))
    [one] = trace.exchanges
    assert one.request.size == len(body)
    assert one.request.cut
    assert one.response.size == len(reply)


def test_a_reset_reaches_the_other_side(upstream: Scripted) -> None:
    """A client that resets its connection makes the upstream stop at once."""
    gone = upstream.gone
    with proxying(upstream.url) as url:
        connection = socket.create_connection(address(url), timeout=30)
        connection.sendall(request("endless", 1))
        receive(connection, 100)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        until(lambda: upstream.gone > gone)


def test_no_upstream_is_a_502_that_says_so(tmp_path: Path) -> None:
    """A client gets an error object, and the record has the reason."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with proxying(nowhere, jsonl(tmp_path)) as url:
            came = send(url, b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
    assert came.startswith(b"HTTP/1.1 502 ")
    assert b'"code": "unreachable"' in came
    [trace] = everything(JsonlReader(tmp_path))
    assert trace.status == "failed"
    assert trace.exchanges[0].status == 502
    assert trace.exchanges[0].errors[0].type == "unreachable"


# --- in front of phloem

_CHANGING = re.compile(
    rb"(chatcmpl-|cmpl-|run_|call_)[0-9a-f]+|[0-9a-f]{32}-[0-9a-f]{16}|[0-9a-f]{32}"
    rb"|(?<=x-request-id: )\w+|(?<=date: )[^\r]+|-?\d+\.\d+(e-?\d+)?|\b\d+e-\d+"
    rb"|\"(created|seed|cached_tokens|reused|prefilled|computed_chars)\": ?(\d+|null)"
)


def settled(answer: bytes) -> bytes:
    """The answer without ids, clocks and measured times; and, because those have several
    lengths, without the sizes of chunks that hold them."""
    clean = _CHANGING.sub(b"#", answer)
    return re.sub(rb"(?<=\r\n)[0-9a-f]+(?=\r\n)|(?<=content-length: )\d+", b"#", clean)


def told(answer: bytes) -> tuple[bytes, str]:
    """A stream's texts joined, and the rest of an answer: how many tokens have come when the
    server writes, and share an event or a chunk, is a matter of time."""
    head, blank, body = answer.partition(b"\r\n\r\n")
    if b"text/event-stream" not in head:
        return settled(answer), ""
    rest, text = [], ""
    for event in re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", body).split(b"\n\n"):
        piece = piece_of(event)
        text += piece or ""
        if piece is None:
            rest.append(re.sub(rb'id: [\d-]+|"seq": ?\d+', b"#", event))
    return settled(head + blank + b"\n".join(rest)), text


def piece_of(event: bytes) -> str | None:
    """The text of an event that brings nothing but text."""
    try:
        value = json.loads(event.partition(b"data: ")[2].partition(b"\n")[0])
    except ValueError:
        return None
    if value.get("type") == "token":
        return str(value["text"])
    delta = (value.get("choices") or [{}])[0].get("delta", {})
    return str(delta["content"]) if delta.keys() == {"content"} else None


def phloem_requests(count: int, model: str) -> list[tuple[bytes, int | None]]:
    """Mixed requests to phloem, and after how many bytes the client goes away."""
    chance = random.Random(7)
    found: list[tuple[bytes, int | None]] = []
    for number in range(count):
        chat = {
            "model": model,
            "messages": [{"role": "user", "content": f"Number {number}"}],
            "max_tokens": chance.randint(1, 5),
            "temperature": 0,
        }
        kinds: list[tuple[str, object, int | None]] = [
            ("/v1/chat/completions", chat, None),
            ("/v1/chat/completions", {**chat, "stream": True}, None),
            ("/v1/chat/completions", {**chat, "stream": True, "max_tokens": 500}, 700),
            ("/v1/chat/completions", {**chat, "temperature": -1}, None),
            ("/v1/chat/completions", {**chat, "regex": "a[b", "stream": True}, None),
            ("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 2, "seed": 3}, None),
            ("/v1/programs/story/runs", {"args": {"topic": "x"}, "stream": True, "seed": 1}, None),
            ("/v1/programs/broken/runs", {"args": {"key": "x"}, "seed": 1}, None),
            ("/v1/nothing", {}, None),
        ]
        path, body, cut = kinds[number % len(kinds)]
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        end = f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        found.append(((head + end).encode() + data, cut))
    return found


@pytest.fixture(scope="module")
def phloem() -> Iterator[Running]:
    # Comments that fill silence come by the clock: here there are none.
    with serving(tiny(), PROGRAMS, early_headers_s=60, heartbeat_s=60) as running:
        yield running


def compare(phloem: Running, count: int, folder: Path) -> None:
    cases = phloem_requests(count, phloem.model)
    direct = [told(send(phloem.url, data, cut)) for data, cut in cases]
    phloem.wait_idle()
    with proxying(phloem.url, jsonl(folder)) as url:
        through = [told(send(url, data, cut)) for data, cut in cases]
        phloem.wait_idle()
    for (data, cut), (one, said), (two, again) in zip(cases, direct, through, strict=True):
        if cut is None:
            assert (two, again) == (one, said), data
        else:  # A cut answer ends somewhere in an event.
            length = min(len(said), len(again))
            assert again[:length] == said[:length], data
            assert two[:300] == one[:300], data
    outcomes = [one.outcome for trace in everything(JsonlReader(folder)) for one in trace.exchanges]
    assert len(outcomes) == count
    assert outcomes.count("cancelled") == sum(cut is not None for _, cut in cases)


def test_answers_of_phloem_are_the_same(phloem: Running, tmp_path: Path) -> None:
    """Plain and streamed answers, runs, errors, and clients that go away: equal with and without
    the proxy, and each is recorded."""
    compare(phloem, 9, tmp_path)


@pytest.mark.slow
def test_200_answers_of_phloem_are_the_same(phloem: Running, tmp_path: Path) -> None:
    """The same with 200 requests."""
    compare(phloem, 200, tmp_path)


def test_the_openai_client_streams_through_the_proxy(phloem: Running, tmp_path: Path) -> None:
    """OpenAI's client gets the same texts, piece by piece, and its calls are one conversation."""

    def talk(base: str) -> list[str]:
        texts = []
        with openai.OpenAI(base_url=f"{base}/v1", api_key="sk-proxy-test-0123456789") as client:
            messages = [{"role": "user", "content": "One?"}]
            for _ in range(2):
                stream = client.chat.completions.create(
                    model=phloem.model, messages=messages, max_tokens=5, temperature=0,
                    stream=True, stream_options={"include_usage": True},
                )  # fmt: skip
                pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
                texts += [piece for piece in pieces if piece]
                messages += [
                    {"role": "assistant", "content": "x"},
                    {"role": "user", "content": "?"},
                ]
        return texts

    direct = talk(phloem.url)
    with proxying(phloem.url, jsonl(tmp_path)) as url:
        assert "".join(talk(url)) == "".join(direct)
    [trace] = everything(JsonlReader(tmp_path))
    assert trace.kind == "conversation"
    assert len(trace.exchanges) == 2
    for one in trace.exchanges:
        assert one.stream
        assert one.usage is not None
        assert one.usage["completion_tokens"] == 5
        assert one.finish_reason == "length"
    assert "".join(one.output or "" for one in trace.exchanges) == "".join(direct)
