"""The OpenAPI document is true: requests made from it never break the server or surprise it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import branches, broken, story

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/jsonl")
def jsonl(_: Any, value: Any) -> bytes:
    """A body of JSON lines is text that is sent as it is."""
    return str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server whose context is so small that no request takes long."""
    with serving(tiny(512), [story, broken, branches], max_n=2) as running:
        yield running


def cases(server: Running, count: int) -> Counter[str]:
    """Send `count` requests made from the document, check each reply, and count statuses."""
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    schema.config.update(base_url=server.url)
    statuses: Counter[str] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema.as_strategy())
    def check(case: Case) -> None:
        response = case.call(timeout=60)
        statuses[f"{response.status_code // 100}xx"] += 1
        # A deadline that the request itself sets may be missed, and the document says so.
        late = response.status_code == 504 and "deadline_s" in (case.body or ())
        checks = CHECKS if late else [not_a_server_error, *CHECKS]
        case.validate_response(response, checks=checks)

    check()
    return statuses


def test_200_requests_of_the_document(server: Running) -> None:
    """No 5xx but for a deadline of their own; each reply is as the document has it."""
    statuses = cases(server, 200)
    assert statuses.total() >= 200
    assert statuses["2xx"] > 10
    assert server.chat().status_code == 200


@pytest.mark.slow
def test_2000_requests_of_the_document(server: Running) -> None:
    """The same with 2,000 requests."""
    assert cases(server, 2000).total() >= 2000
    assert server.chat().status_code == 200


def test_the_document_names_what_it_answers(server: Running) -> None:
    """Bad requests are 4XX in the document, never FastAPI's 422; streams are declared."""
    document = server.client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "422" not in operation["responses"], (method, path)
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "text/event-stream" in chat["responses"]["200"]["content"]
    assert {"4XX", "5XX"} <= set(chat["responses"])


def test_a_deadline_is_one_that_can_be_kept(server: Running) -> None:
    """Less than a millisecond is refused as a value; what is missed is a 504 of the document."""
    for url, body in (
        ("/v1/programs/story/runs", {"args": {"topic": "x"}}),
        ("/v1/chat/completions", server.chat_body()),
    ):
        refused = server.client.post(url, json={**body, "deadline_s": 5e-324})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "deadline_s")
        late = server.client.post(url, json={**body, "deadline_s": 0.001})
        assert late.status_code == 504
