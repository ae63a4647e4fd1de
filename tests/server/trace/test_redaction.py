"""No secret is kept, and what is no secret stays."""

from __future__ import annotations

import base64
import json

import pytest

from phloem.errors import ConfigError
from phloem.server.trace.recorder.redact import MASK, Redactor, environment_secrets

KEY = "sk-abcdef0123456789"


def test_headers_by_their_names() -> None:
    """Credentials are masked with their scheme left; ordinary headers stay."""
    found = Redactor().headers(
        [
            ("authorization", f"Bearer {KEY}"),
            ("x-api-key", "plainvalue"),
            ("cookie", "session=abc; theme=dark"),
            ("set-cookie", "session=abc"),
            ("x-goog-api-key", "y"),
            ("x-amz-security-token", "z"),
            ("content-type", "application/json"),
            ("x-request-id", "r-1"),
        ]
    )
    assert found == (
        ("authorization", f"Bearer {MASK}"),
        ("x-api-key", MASK),
        ("cookie", MASK),
        ("set-cookie", MASK),
        ("x-goog-api-key", MASK),
        ("x-amz-security-token", MASK),
        ("content-type", "application/json"),
        ("x-request-id", "r-1"),
    )


def test_json_fields_by_their_names() -> None:
    """Secret fields are masked at any depth; tokens, keys and schemas of models are not."""
    body = {
        "api_key": "a-value",
        "max_tokens": 5,
        "token": "w",
        "key": "v",
        "eos_token": "</s>",
        "extra": [{"client_secret": "deep", "password": 1234, "prompt_tokens": 7}],
    }
    text = json.dumps(body)
    clean = json.loads(Redactor().body(text))
    assert clean["api_key"] == MASK
    assert clean["extra"] == [{"client_secret": MASK, "password": MASK, "prompt_tokens": 7}]
    assert (clean["max_tokens"], clean["token"], clean["key"]) == (5, "w", "v")
    assert clean["eos_token"] == "</s>"


def test_bodies_without_secrets_stay_to_the_byte() -> None:
    """White space and order of a clean body are kept, of JSON and of streams."""
    for text in ('{ "b":1,\n "a":"\\u00e9" }', 'data: {"a":  1}\n\ndata: [DONE]\n\n', "plain text"):
        assert Redactor().body(text) == text


def test_streams_and_cut_json() -> None:
    """Events are masked line by line; JSON that breaks off is masked by its named fields."""
    redactor = Redactor()
    stream = 'data: {"password": "one1"}\n\ndata: {"x": "y"}\n\n'
    assert redactor.body(stream) == 'data: {"password": "***"}\n\ndata: {"x": "y"}\n\n'
    assert "two2" not in redactor.body('{"a": 1, "password": "two2", "b": "c')
    assert "three" not in redactor.body(
        '{"text": "{\\"api_key\\": \\"three\\"',
    )
    assert "four" not in redactor.body("user=a&password=four&b=c")


def test_queries() -> None:
    """Secret parameters of a target are masked."""
    assert Redactor().target("/v1/x?api_key=abc&q=1&key=def") == "/v1/x?api_key=***&q=1&key=***"


def test_known_values_in_every_form() -> None:
    """A known secret is found plain, in base64, in a URL and inside of JSON."""
    secret = 'p4ss"word/with odd'
    redactor = Redactor([secret])
    encoded = base64.b64encode(secret.encode()).decode()
    for text in (secret, encoded, "p4ss%22word%2Fwith%20odd", json.dumps(secret)):
        assert MASK in redactor.text(f"x {text} y")
        assert "p4ss" not in redactor.text(f"x {text} y")


def test_what_a_request_gave_is_known_in_answers() -> None:
    """A key or a password that came in a request is masked where an answer quotes it."""
    redactor = Redactor()
    redactor.learn([("authorization", "Bearer unusual value 9"), ("cookie", "sid=cookie-value-1")])
    redactor.body('{"password": "hunter2-hunter2"}')
    redactor.target("/x?key=query-value-1")
    quoted = "bad: unusual value 9, cookie-value-1, hunter2-hunter2, query-value-1"
    assert redactor.text(quoted) == "bad: ***, ***, ***, ***"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        "Bearer abc.def-123456",
        "http://bob:p4ssword@host/x",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdef0123",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
    ],
)
def test_what_looks_like_a_secret(text: str) -> None:
    """Credentials of well-known forms are masked wherever they stand."""
    assert MASK in Redactor().text(f"see {text} here")


@pytest.mark.parametrize(
    "text", ["basic understanding of things", "the bearer of news", "http://host:80/a", "task-1"]
)
def test_what_only_resembles_one(text: str) -> None:
    """Ordinary words stay."""
    assert Redactor().text(text) == text


def test_own_patterns() -> None:
    """A user's own expression is masked; one that does not parse is refused with its text."""
    assert Redactor(patterns=[r"\d{4}-\d{4}"]).text("card 1234-5678") == f"card {MASK}"
    with pytest.raises(ConfigError, match=r"a\[b"):
        Redactor(patterns=["a[b"])


def test_secrets_of_an_environment() -> None:
    """Variables with secret names count, and of addresses the password only."""
    found = environment_secrets(
        {
            "OPENAI_API_KEY": "k1",
            "DB_PASSWORD": "k2",
            "PHLOEM_ES_URL": "http://u:k3@h:9200",
            "SSH_AUTH_SOCK": "/tmp/x",
            "HOME": "/root",
            "MODEL_URL": "http://h",
        }
    )
    assert sorted(found) == ["k1", "k2", "k3"]


def test_a_secret_in_pieces() -> None:
    """Pieces that are clean one by one but spell a secret together are found out."""
    redactor = Redactor([KEY])
    assert redactor.pieces(["sk-abc", "def0123", "456789"])
    assert not redactor.pieces(["a", "b"])
    assert not redactor.pieces(["whole: ", KEY, "!"])
