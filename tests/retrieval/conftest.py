"""Stores to test against, an embedder that needs no model, and a scripted HTTP server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import socket
import subprocess
import sysconfig
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phloem.retrieval import ElasticsearchRetriever, EmbeddedIndex, OpenSearchRetriever
from phloem.retrieval.admin import Store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class WordsEmbedder:
    """Bag of words, each hashed to a direction: texts that share words are alike."""

    def __init__(self, dims: int = 32, name: str = "words") -> None:
        self.dims = dims
        self.name = name
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        rows = np.full((len(texts), self.dims), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
                rows[row] += np.random.default_rng(seed).standard_normal(self.dims)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def embedder() -> WordsEmbedder:
    return WordsEmbedder()


@pytest.fixture
def make_embedder() -> type[WordsEmbedder]:
    return WordsEmbedder


class TestServer:
    """A `noida-db` process that speaks Elasticsearch's protocol."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self._run("up", "--only", "elasticsearch", "--elasticsearch-port", str(self.port))

    def stop(self) -> None:
        self._run("down")

    def pid(self) -> int:
        status = self._run("status")
        return int(re.search(r"pid (\d+)", status)[1])

    def _run(self, *command: str) -> str:
        program = Path(sysconfig.get_path("scripts")) / "noida-db"
        done = subprocess.run(
            [program, command[0], "--data-dir", self.folder, *command[1:]],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A search server: PHLOEM_TEST_ES_URL, or one started for this session."""
    if given := os.environ.get("PHLOEM_TEST_ES_URL"):
        yield given
        return
    server = TestServer(tmp_path_factory.mktemp("noida"))
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[TestServer]:
    """A search server for one test, which may stop it."""
    server = TestServer(tmp_path / "noida")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["embedded", "elasticsearch", "opensearch"])
async def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, index: str
) -> AsyncIterator[Callable[..., Store]]:
    """Opens stores of one kind on the same data; all are closed, and `index` dropped, after."""
    opened: list[Store] = []

    def open_one(**options: Any) -> Store:
        if request.param == "embedded":
            options.pop("fuse_on_server", None)
            store: Store = EmbeddedIndex(tmp_path / "indexes", **options)
        else:
            url = request.getfixturevalue("server_url")
            made = {"elasticsearch": ElasticsearchRetriever, "opensearch": OpenSearchRetriever}
            store = made[request.param](url, **options)
        opened.append(store)
        return store

    yield open_one
    cleaner = open_one()
    for info in await cleaner.indexes():
        if info.name.startswith(index):
            await cleaner.drop(info.name)
    for store in opened:
        await store.aclose()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def index() -> str:
    """An index name of this test's own."""
    return f"t-{uuid.uuid4().hex[:12]}"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


def reply(
    body: Any,
    status: int = 200,
    *,
    content_type: str = "application/json",
    product: bool = True,
) -> bytes:
    """An HTTP response as an Elasticsearch server gives it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(content)}\r\n"
    )
    if product:
        head += "x-elastic-product: Elasticsearch\r\n"
    return head.encode() + b"\r\n" + content


INFO = {"cluster_name": "fake", "version": {"number": "9.0.0"}, "tagline": "You Know, for Search"}

Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[bytes | None]]


@dataclass
class ScriptedServer:
    """An HTTP server whose `answer` decides what each request gets; it keeps all `requests`.

    `answer` returns the bytes of a response, or None if it has written to the stream itself;
    the connection is then closed.
    """

    answer: Answer
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def searches(self) -> list[Request]:
        return [r for r in self.requests if "_search" in r.path or "_msearch" in r.path]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                method, path, _ = lines[0].split(" ")
                pairs = (line.split(": ", 1) for line in lines[1:] if ": " in line)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method, path, headers, body)
                self.requests.append(request)
                response = await self.answer(request, writer)
                if response is None:
                    break
                writer.write(response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    """Starts scripted servers, each given an answer: a function, or one response for all
    searches (other requests get the server's info)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running: list[asyncio.Server] = []

    def start(answer: Answer | bytes, *, ssl: Any = None) -> ScriptedServer:
        async def fixed(request: Request, _: asyncio.StreamWriter) -> bytes:
            return answer if "search" in request.path else reply(INFO)

        server = ScriptedServer(answer if callable(answer) else fixed)

        async def listen() -> None:
            listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=ssl)
            running.append(listener)
            port = listener.sockets[0].getsockname()[1]
            server.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}"

        asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
        return server

    yield start

    async def stop() -> None:
        for listener in running:
            listener.close()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # aborted transports close in the loop's next turns

    asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def hit(
    text: str = "a passage", id_: str = "1", score: float = 1.0, **source: Any
) -> dict[str, Any]:
    return {"_id": id_, "_score": score, "_source": {"text": text, **source}}


def found(*hits: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """The body of a search's answer."""
    shards = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
    return {"timed_out": False, "_shards": shards, "hits": {"hits": list(hits)}, **extra}


@pytest.fixture
def es() -> Any:
    """The helpers above, for tests that script a server."""

    class Helpers:
        Request = Request
        info = INFO
        reply = staticmethod(reply)
        hit = staticmethod(hit)
        found = staticmethod(found)

    return Helpers
