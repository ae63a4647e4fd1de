"""phloem's server with SGLang's backend behind it; the servers behind are phloem's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phloem.errors import ConfigError, EngineUnavailable, Overloaded
from phloem.programs import registry
from phloem.programs.protocol import Capabilities
from phloem.programs.testing import ScriptedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.runtime.sglang.backend import RuntimeEndpoint
from phloem.runtime.sglang.launch import Runtime
from phloem.server.remote import sglang_backend
from phloem.server.settings import load_settings
from tests.runtime.remote.tapped import Tap, tapped
from tests.server.cli.conftest import Command
from tests.server.harness import Running, serving

PROGRAM = """
import phloem as ph

@ph.function
def number(s, topic):
    s += "A number about " + topic + ": " + ph.gen("number", regex="[0-9]{3}", max_tokens=9)
    return s["number"]
"""


@pytest.fixture(scope="module")
def tap() -> Iterator[Tap]:
    """The server behind."""
    with tapped() as made:
        yield made


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with the tokenizer of the model behind."""
    model = tiny_model()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json())
    (folder / "config.json").write_text(json.dumps({"eos_token_id": sorted(model.eos_ids)}))
    return folder


@pytest.fixture
def front(tap: Tap) -> Iterator[Running]:
    """A server in front of it."""
    with serving(RuntimeEndpoint(tap.url, tokenizer=tiny_model())) as running:
        yield running


def test_the_apis_answer_over_sglang(front: Running, tap: Tap) -> None:
    """Completions, chats and SGLang's own endpoint work, and ids go through unchanged."""
    body = {"model": front.model, "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    assert front.client.post("/v1/completions", json=body).status_code == 200
    assert front.chat().status_code == 200
    ids = [7, 8, 9]
    asked = {"input_ids": ids, "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    reply = front.client.post("/generate", json=asked).json()
    assert reply["meta_info"]["completion_tokens"] == 2
    assert tap.requests[-1]["input_ids"] == ids


def test_a_server_that_is_not_there_yet_is_waited_for(
    tap: Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server in front says why it isn't ready, tries again, and then serves."""
    monkeypatch.setattr("phloem.server.http.engine._RETRY_S", 0.01)
    there = RuntimeEndpoint(tap.url, tokenizer=tiny_model())
    attempts = iter([EngineUnavailable("not yet"), Overloaded("still loading"), None])

    class Late(ScriptedBackend):
        """A backend that can't be reached at first."""

        @property
        def capabilities(self) -> Capabilities:
            """What the server behind has, once it is there."""
            if problem := next(attempts, None):
                raise problem
            return there.capabilities

    with serving(Late()) as front:
        assert front.client.get("/ready").json()["ready"] is True


def test_settings_make_the_backend() -> None:
    """Addresses make an endpoint, a model alone a server that is started, neither is refused."""
    there = sglang_backend(load_settings(sglang_url=("http://127.0.0.1:1", "http://127.0.0.1:2")))
    assert isinstance(there, RuntimeEndpoint)
    assert there.urls == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    here = sglang_backend(
        load_settings(backend="sglang", model="m", sglang_python=sys.executable,
                      sglang_args=("--enable-x", "dtype=bfloat16"))
    )  # fmt: skip
    assert isinstance(here, Runtime)
    words = here.command
    assert words[words.index("--dtype") + 1] == "bfloat16"
    assert "--enable-x" in words
    with pytest.raises(ConfigError, match="model"):
        sglang_backend(load_settings(backend="sglang"))
    with pytest.raises(ConfigError, match="setting of its own"):
        sglang_backend(load_settings(backend="sglang", model="m", sglang_python=sys.executable,
                                     sglang_args=("tp=2",)))  # fmt: skip


def test_phloem_run_over_sglang(phloem: Command, tap: Tap, tokenizer: Path, tmp_path: Path) -> None:
    """`phloem run --sglang-url` runs a program there; --model names the tokenizer."""
    (tmp_path / "agent.py").write_text(PROGRAM)
    done = phloem(
        "run", f"{tmp_path / 'agent.py'}:number", "--topic", "trees", "--quiet",
        "--sglang-url", tap.url, "--model", str(tokenizer),
    )  # fmt: skip
    registry.reset("backend")
    assert (done.code, done.err) == (0, "")
    assert done.out.strip().isdigit()


def test_the_doctor_tells_of_servers(phloem: Command, tap: Tap) -> None:
    """Model and version of a server that can be used; what is wrong with one that can't."""
    done = phloem("doctor", "--sglang-url", tap.url, "--sglang-url", "http://127.0.0.1:1")
    good, bad = done.out.partition("sglang 1")[2].partition("sglang 2")[::2]
    assert all(word in good for word in ("phloem 0", "tiny", "4096 tokens"))
    assert "nobody answers" in bad
    assert done.code == 1


def test_the_plan_is_a_table_or_json(phloem: Command) -> None:
    """The same numbers for people and for programs; a size that is none is refused."""
    asked = ("plan", "--model", "llama-3-8b", "--gpu-mem", "80", "--concurrency", "32")
    done = phloem(*asked)
    assert "KV 128 KiB per token" in done.out
    assert "--tp 1 --mem-fraction-static 0.841" in done.out
    data = json.loads(phloem(*asked, "--json").out)
    assert (data["best_tp"], data["kv_per_token"]) == (1, 131_072)
    refused = phloem("plan", "--model", "llama-3-8b", "--gpu-mem", "much")
    assert "no size" in refused.err
