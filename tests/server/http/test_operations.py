"""Metrics, logs, trace context, readiness: what an operator sees."""

from __future__ import annotations

import base64
import inspect
import io
import json
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
import structlog
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from prometheus_client.parser import text_string_to_metric_families

import phloem as ph
from phloem.errors import ModelNotFound, RetrievalUnavailable
from phloem.grammar.analyser import default_analyser
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hits, Query
from phloem.retrieval.defaults import default_retriever
from phloem.server.http.app import ROUTERS
from phloem.server.http.engine import Engine
from phloem.server.http.health import ready
from phloem.server.http.logs import configure_logs
from phloem.server.http.metrics import KINDS, OUTCOMES, TOKENS
from phloem.server.http.state import make_state
from phloem.server.http.trace_context import TraceContext
from phloem.server.settings import load_settings
from tests.server.harness import Running, serving

Start = Callable[..., AbstractContextManager[Running]]


@ph.function
def searching(s: ph.State, question: str) -> str:
    """A program whose retrieval fails."""
    s += ph.retrieve(question, retries=0)[0].text
    return s.text()


@ph.function
def raising(s: ph.State, question: str) -> str:
    """A program with an error of its own."""
    raise ValueError(f"nothing for {question}")


def samples(server: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(server.client.get("/metrics").text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_no_request_queues_for_a_thread_to_find_its_server() -> None:
    """Endpoints and all that they depend on are coroutines: each plain function among them would
    be a turn on FastAPI's few threads, for every request."""

    def calls(needed: Dependant) -> list[Callable[..., Any] | None]:
        return [needed.call, *(call for part in needed.dependencies for call in calls(part))]

    routes = [one for router in ROUTERS for one in router.routes if isinstance(one, APIRoute)]
    found = [call for route in routes for call in calls(route.dependant)]
    assert len(found) > len(ROUTERS)
    assert [call for call in found if not inspect.iscoroutinefunction(call)] == []


def test_every_series_is_there_from_the_start(start: Start) -> None:
    """All outcomes and token kinds are exposed at 0 before the first request."""
    with start() as server:
        before = samples(server)
        for kind in KINDS:
            for reason in OUTCOMES:
                key = ("phloem_requests_finished_total", (("kind", kind), ("reason", reason)))
                assert before[key] == 0
        for part in TOKENS:
            assert before[("phloem_tokens_total", (("part", part),))] == 0
        server.chat()
        server.chat(max_tokens=3000, ignore_eos=True, deadline_s=0.2)
        server.chat(temperature=-1)
        assert set(samples(server)) == set(before)


def test_each_request_is_counted_once_by_its_end(start: Start) -> None:
    """Closed streams, whole replies, timeouts and errors each add one to their own reason."""
    with start() as server:
        for _ in range(5):
            body = server.chat_body(max_tokens=3000, ignore_eos=True, stream=True)
            with server.client.stream("POST", "/v1/chat/completions", json=body) as reply:
                next(reply.iter_lines())
        server.wait_idle()
        for _ in range(3):
            server.chat()
        server.chat(max_tokens=3000, ignore_eos=True, deadline_s=0.2)
        server.wait_idle()
        counts = {
            reason: server.metric("phloem_requests_finished_total", kind="chat", reason=reason)
            for reason in OUTCOMES
        }
        assert counts == {
            "stop": 0, "length": 3, "abort": 5, "timeout": 1, "rejected": 0, "error": 0
        }  # fmt: skip
        assert server.metric("phloem_request_seconds_count", kind="chat") == 9
        for part in ("prompt", "generated"):
            total = server.metric("phloem_tokens_total", part=part)
            assert server.metric(f"phloem_request_{part}_tokens_sum") == total
            assert server.metric(f"phloem_request_{part}_tokens_count") == 9


def test_refusals_are_counted_as_such(start: Start) -> None:
    """What an endpoint refuses before any work is one rejected request of its kind."""
    with start() as server:
        bad = {"regex": "a[b"}
        sampling = {"sampling_params": bad}
        known = {"model": server.model, "prompt": "x"}
        vectors = {"model": "default", "input": "x", "dimensions": 3}
        replies = [
            server.chat(**bad),
            server.chat(min_tokens=9),
            server.client.post("/v1/completions", json=known | bad),
            server.client.post("/generate", json={"text": "x", **sampling}),
            server.client.post("/generate", json={"text": "x", "stream": True, **sampling}),
            server.client.post("/v1/embeddings", json=vectors),
        ]
        assert [reply.status_code for reply in replies] == [400] * 6
        for kind, count in {"chat": 2, "completion": 1, "generate": 2, "embedding": 1}.items():
            labels = {"kind": kind, "reason": "rejected"}
            assert server.metric("phloem_requests_finished_total", **labels) == count


@pytest.fixture
def log(own_logging: None) -> io.StringIO:
    """The log as text, secrets masked as the settings of the test say."""
    stream = io.StringIO()
    configure_logs(
        load_settings(
            api_key="sk-test-DO-NOT-LOG-123",
            es_url="http://bob:p4ss-DO-NOT-LOG@127.0.0.1:1",
            log_level="debug",
        )
    )
    for handler in logging.getLogger().handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
    return stream


def test_the_log_is_json_with_trace_ids_and_without_prompts(
    server: Running, log: io.StringIO
) -> None:
    """A request is one JSON line with ids, status and time, and no text of it."""
    trace = "1" * 32
    # A new connection, whose protocol object is made while the log is on.
    httpx.post(
        f"{server.url}/v1/chat/completions?secret=DO-NOT-LOG",
        json=server.chat_body(messages=[{"role": "user", "content": "DO-NOT-LOG"}]),
        headers={"traceparent": f"00-{trace}-{'2' * 16}-01", "x-request-id": "r-1"},
    )
    # The line is written when the response is over, which the client may see a little earlier.
    until = time.monotonic() + 5
    while '"r-1"' not in log.getvalue():
        assert time.monotonic() < until
        time.sleep(0.01)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    line = next(line for line in lines if line.get("request_id") == "r-1")
    assert line["trace_id"] == trace
    assert line["status"] == 200
    assert line["path"] == "/v1/chat/completions"
    assert [line for line in lines if "DO-NOT-LOG" in str(line)] == []


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_are_in_the_log_only_where_asked(log: io.StringIO, asked: bool) -> None:
    """With log_prompts prompts and outputs are log lines, without it neither occurs."""
    backend = ScriptedBackend(lambda *_: "OUTPUT")
    with serving(backend, [raising], log_prompts=asked) as server:
        server.chat(messages=[{"role": "user", "content": "THE-PROMPT"}])
        server.chat(messages=[{"role": "user", "content": "THE-PROMPT"}], stream=True)
        server.run("raising", args={"question": "THE-PROMPT"})
    assert ("THE-PROMPT" in log.getvalue()) == asked
    assert ("OUTPUT" in log.getvalue()) == asked


def test_secrets_are_masked_in_every_line(log: io.StringIO) -> None:
    """A secret, alone, in a URL, in base64, in a traceback or in a foreign logger, is ***."""
    secret = "sk-test-DO-NOT-LOG-123"
    structlog.get_logger("x").info("one", key=secret, nested={"a": [secret]})
    logging.getLogger("other").warning("url %s", "http://bob:p4ss-DO-NOT-LOG@127.0.0.1:1/x")
    logging.getLogger("other").info(base64.b64encode(secret.encode()).decode())
    try:
        raise ValueError(secret)
    except ValueError:
        logging.getLogger("other").exception("failed")
    text = log.getvalue()
    assert len(text.splitlines()) == 4
    assert "DO-NOT-LOG" not in text
    assert base64.b64encode(secret.encode()).decode().rstrip("=") not in text
    assert text.count("***") >= 5


def test_secrets_never_show_in_the_settings() -> None:
    """Printing the settings shows no secret."""
    settings = load_settings(api_key="sk-DO-NOT-LOG", es_url="http://u:DO-NOT-LOG@h")
    assert "DO-NOT-LOG" not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    ("header", "trace", "parent"),
    [
        ("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "1" * 32, "2" * 16),
        ("cc-" + "1" * 32 + "-" + "2" * 16 + "-01-more", "1" * 32, "2" * 16),
        (None, None, None),
        ("00-zz-1-01", None, None),
        ("ff-" + "1" * 32 + "-" + "2" * 16 + "-01", None, None),
        ("00-" + "0" * 32 + "-" + "2" * 16 + "-01", None, None),
        ("00-" + "1" * 32 + "-" + "2" * 16 + "-01-more", None, None),
    ],
)
def test_trace_context_is_taken_or_made(
    header: str | None, trace: str | None, parent: str | None
) -> None:
    """A good traceparent is continued, a bad or missing one starts a new trace."""
    found = TraceContext.receive(header)
    assert found.parent_id == parent
    assert found.trace_id == trace or trace is None
    again = TraceContext.receive(found.header)
    assert again.trace_id == found.trace_id
    assert again.parent_id == found.span_id


def test_trace_context_comes_back(server: Running) -> None:
    """The response names the trace and the server's own span in it; garbage is no error."""
    header = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    back = server.client.get("/v1/models", headers=header).headers["traceparent"].split("-")
    assert back[1] == "a" * 32
    assert back[2] != "b" * 16
    assert server.client.get("/v1/models", headers={"traceparent": "00-zz-1-01"}).status_code == 200


class _DeadIndex:
    async def search(self, query: Query) -> Hits:
        raise RetrievalUnavailable("nobody answers")

    async def aclose(self) -> None:
        return


async def test_readiness_names_what_is_missing() -> None:
    """A model that can't be loaded and an index that can't be reached make /ready a 503."""

    def fail() -> ScriptedBackend:
        raise ModelNotFound("no such model")

    state = make_state(load_settings(), Engine(fail), default_analyser(), _DeadIndex())
    reply = json.loads((await ready(state)).body)
    assert reply == {
        "ready": False,
        "model": "loading",
        "index": "failed: RetrievalUnavailable",
        "runs": "ok",
    }
    state.engine.start()
    await state.engine.stop()
    response = await ready(state)
    assert response.status_code == 503
    assert json.loads(response.body)["model"] == "failed: ModelNotFound"


def test_an_internal_error_is_a_500_that_tells_nothing() -> None:
    """A bug's message stays in the log; the reply says internal error in the usual shape."""

    def bug(*_: object) -> str:
        raise RuntimeError("DO-NOT-SHOW")

    with serving(ScriptedBackend(bug)) as server:
        reply = server.chat()
        assert reply.status_code == 500
        assert reply.json()["error"]["code"] == "internal"
        assert "DO-NOT-SHOW" not in reply.text
        assert server.metric("phloem_requests_finished_total", kind="chat", reason="error") == 1
        assert server.client.get("/health").status_code == 200


def test_secrets_stay_out_of_everything_that_is_said(log: io.StringIO) -> None:
    """Neither the key nor the password of the search server is in a reply, the log or the
    metrics, after a good call, a bad key, a failed retrieval and an error in a program."""
    key, password = "sk-test-DO-NOT-LOG-123", "p4ss-DO-NOT-LOG"
    address = f"http://bob:{password}@127.0.0.1:1"
    with serving(
        ScriptedBackend(lambda *_: "fine"), [searching, raising], api_key=key, es_url=address
    ) as server:
        server.state.retriever = default_retriever({"PHLOEM_ES_URL": address})
        server.client.headers["authorization"] = f"Bearer {key}"
        replies = [
            server.chat(),
            server.run("searching", args={"question": "x"}),
            server.run("raising", args={"question": "x"}),
            server.client.get("/metrics"),
            server.client.get("/v1/runs"),
            server.client.get("/ready"),
        ]
        server.client.headers["authorization"] = f"Bearer {key}x"
        replies.append(server.chat())
        metric = {"kind": "run", "reason": "error"}
        assert server.metric("phloem_requests_finished_total", **metric) == 2
        assert server.metric("phloem_retrievals_total", outcome="error") == 1
    statuses = [reply.status_code for reply in replies]
    assert statuses == [200, 502, 422, 200, 200, 503, 401]
    said = log.getvalue() + "".join(reply.text for reply in replies)
    for secret in (key, password):
        assert secret not in said
        assert base64.b64encode(secret.encode()).decode().rstrip("=") not in said
