"""The proxy in front of another server that speaks OpenAI's API: llama.cpp's, by its Python
package.

It needs an environment of its own with `llama-cpp-python[server]`: PHLOEM_LLAMA_PYTHON names its
Python. Without one these tests are skipped; they are slow in any case.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from phloem.runtime.model import store
from phloem.server.trace.readers.jsonl import JsonlReader
from tests.retrieval.conftest import free_port
from tests.server.trace.support import (
    address,
    everything,
    jsonl,
    proxying,
    receive_until_reset,
    until,
)

PYTHON = os.environ.get("PHLOEM_LLAMA_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(PYTHON is None, reason="set PHLOEM_LLAMA_PYTHON to run against llama.cpp"),
]
MODEL = "smollm2"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server."""
    port = free_port()
    weights = store.model_path(store.DEFAULT_MODEL)
    command = [str(PYTHON), "-m", "llama_cpp.server", "--model", str(weights)]
    command += ["--model_alias", MODEL, "--port", str(port), "--n_ctx", "2048"]
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/v1/models").status_code == 200
        except httpx.HTTPError:
            return False

    log = tmp_path_factory.mktemp("llama") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            until(answers, 120)
            yield url
        finally:
            process.terminate()
            process.wait()


def requests(count: int) -> list[tuple[bytes, int | None]]:
    """Mixed requests, and after how many bytes the client goes away."""
    chance = random.Random(3)
    found: list[tuple[bytes, int | None]] = []
    for number in range(count):
        chat = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Say {number % 7}."}],
            "max_tokens": chance.randint(1, 4),
            "temperature": 0,
        }
        kinds: list[tuple[str, object, int | None]] = [
            ("/v1/chat/completions", chat, None),
            ("/v1/chat/completions", {**chat, "stream": True}, None),
            ("/v1/chat/completions", {**chat, "stream": True, "max_tokens": 60}, 900),
            ("/v1/chat/completions", {**chat, "messages": "none"}, None),
            ("/v1/completions", {"prompt": "One, two,", "max_tokens": 2, "temperature": 0}, None),
            ("/v1/nothing", {}, None),
        ]
        path, body, cut = kinds[number % len(kinds)]
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        end = f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        found.append(((head + end).encode() + data, cut))
    return found


def settled(answer: bytes) -> bytes:
    """The answer without ids and clocks."""
    changing = rb"(chatcmpl|cmpl)-[0-9a-f-]{36}|(?<=\"created\":) ?\d+|(?<=date: )[^\r]+"
    changing += rb"|(?<=openai-processing-ms: )\d+|(?<=x-request-id: )\w+"
    return re.sub(changing, b"#", answer)


def ask(url: str, data: bytes, cut: int | None) -> bytes:
    """All that comes back. This server resets some connections after an error."""
    with socket.create_connection(address(url), timeout=120) as connection:
        connection.sendall(data)
        return receive_until_reset(connection, cut)


def test_200_mixed_requests_are_the_same(llama: str, tmp_path: Path) -> None:
    """Answers, streams, errors and cancels: equal with and without the proxy, each recorded."""
    cases = requests(200)
    direct = [settled(ask(llama, data, cut)) for data, cut in cases]
    with proxying(llama, jsonl(tmp_path)) as url:
        through = [settled(ask(url, data, cut)) for data, cut in cases]
    for (data, cut), one, two in zip(cases, direct, through, strict=True):
        length = min(len(one), len(two)) - 120 if cut else None
        assert two[:length] == one[:length], data
    exchanges = [one for trace in everything(JsonlReader(tmp_path)) for one in trace.exchanges]
    assert len(exchanges) == len(cases)
    outcomes = [one.outcome for one in exchanges]
    assert outcomes.count("cancelled") == sum(cut is not None for _, cut in cases)


def test_the_openai_client_streams(llama: str, tmp_path: Path) -> None:
    """Its calls are recorded as one conversation, with text and finish reason."""
    with (
        proxying(llama, jsonl(tmp_path)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-llama-test-0123456789") as client,
    ):
        messages: list[dict[str, str]] = [{"role": "user", "content": "Say hello."}]
        said = []
        for _ in range(2):
            stream = client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=6, temperature=0, stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            said.append(text)
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": "Again."})
    [trace] = everything(JsonlReader(tmp_path))
    assert trace.kind == "conversation"
    assert [one.output for one in trace.exchanges] == said
    assert all(one.finish_reason for one in trace.exchanges)
    assert "sk-llama" not in "".join(file.read_text() for file in tmp_path.glob("*.jsonl"))
