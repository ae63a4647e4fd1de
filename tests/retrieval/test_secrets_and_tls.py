"""Credentials reach the server and nobody else; TLS is verified.

The servers at hand check no authentication, so a small TLS proxy that does stands before one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import trustme

from phloem.errors import ConfigError, RetrievalError, RetrievalRefused, RetrievalUnavailable
from phloem.retrieval import Document, ElasticsearchRetriever, OpenSearchRetriever, Query
from phloem.retrieval.defaults import default_retriever
from phloem.retrieval.elastic.address import Address, from_environment

PASSWORD = "p4ss-DO-NOT-LOG"
API_KEY = "sk-test-DO-NOT-LOG-123"
SECRETS = [
    PASSWORD,
    API_KEY,
    base64.b64encode(f"bob:{PASSWORD}".encode()).decode(),
    base64.b64encode(API_KEY.encode()).decode(),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    """A certificate authority, and its file."""
    made = trustme.CA()
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    made.cert_pem.write_to_path(str(path))
    return made, path


@pytest.fixture
def tls_proxy(scripted: Any, authority: Any, server_url: str, es: Any) -> Any:
    """A proxy with TLS that lets in bob with his password, and one API key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority[0].issue_cert("127.0.0.1", "localhost").configure_cert(context)
    basic = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
    admitted = {f"Basic {basic}", f"ApiKey {API_KEY}"}

    async def answer(request: Any, _: Any) -> bytes:
        given = request.headers.get("authorization", "")
        if given not in admitted:
            reason = f"unable to authenticate with header [{given}]"  # some servers echo it
            error = {"type": "security_exception", "reason": reason, "root_cause": []}
            return es.reply({"error": error, "status": 401}, 401)
        return await asyncio.to_thread(forward, request)

    def forward(request: Any) -> bytes:
        kind = request.headers.get("content-type", "application/json")
        kind = "application/x-ndjson" if "ndjson" in kind else "application/json"
        onward = Request(
            server_url + request.path,
            data=request.body or None,
            method=request.method,
            headers={"content-type": kind},
        )
        try:
            with urlopen(onward, timeout=30) as response:
                return es.reply(response.read(), response.status)
        except OSError as error:
            body = error.read() if hasattr(error, "read") else json.dumps({}).encode()
            return es.reply(body, getattr(error, "code", 502))

    return scripted(answer, ssl=context)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Any]]:
    made = []

    def open_one(cls: Any, url: str, **options: Any) -> Any:
        made.append(cls(url, **options))
        return made[-1]

    yield open_one
    for retriever in made:
        await retriever.aclose()


BOTH = pytest.mark.parametrize("cls", [ElasticsearchRetriever, OpenSearchRetriever])


@BOTH
@pytest.mark.parametrize("where", ["argument", "url"])
async def test_a_password_over_tls(
    cls: Any, where: str, connect: Any, tls_proxy: Any, authority: Any, index: str
) -> None:
    """Documents are stored and found through TLS with a user and password."""
    url, options = tls_proxy.url, {"basic_auth": ("bob", PASSWORD)}
    if where == "url":
        url, options = url.replace("://", f"://bob:{PASSWORD}@"), {}
    retriever = connect(cls, url, ca_file=str(authority[1]), **options)
    await retriever.add([Document("a", "over the wire")], index=index)
    assert [hit.id for hit in await retriever.search(Query("wire", index=index))] == ["a"]
    await retriever.drop(index)


async def test_an_api_key_over_tls(connect: Any, tls_proxy: Any, authority: Any) -> None:
    """An API key is accepted by the proxy and the server answers."""
    retriever = connect(
        ElasticsearchRetriever, tls_proxy.url, api_key=API_KEY, ca_file=str(authority[1])
    )
    assert (await retriever.check()).product == "elasticsearch"


@BOTH
async def test_wrong_credentials_are_refused(
    cls: Any, connect: Any, tls_proxy: Any, authority: Any
) -> None:
    """A wrong password is RetrievalRefused, and what the server echoes of it is masked."""
    wrong = "wr0ng-DO-NOT-LOG"
    options = {"basic_auth": ("bob", wrong), "ca_file": str(authority[1])}
    with pytest.raises(RetrievalRefused, match="401") as caught:
        await connect(cls, tls_proxy.url, **options).search(Query("x"))
    shown = str(caught.value) + repr(caught.value.details)
    assert wrong not in shown
    assert base64.b64encode(f"bob:{wrong}".encode()).decode() not in shown
    assert "***" in shown


@BOTH
async def test_an_unknown_authority_is_not_trusted(cls: Any, connect: Any, tls_proxy: Any) -> None:
    """Without the authority's file the handshake fails, with the remedy in the hint."""
    with pytest.raises(RetrievalUnavailable, match="secure connection") as caught:
        await connect(cls, tls_proxy.url, basic_auth=("bob", PASSWORD)).search(Query("x"))
    assert "ca_file" in caught.value.hint
    assert caught.value.details["kind"] == "tls"
    assert tls_proxy.requests == []


@BOTH
async def test_verification_can_be_switched_off(cls: Any, connect: Any, tls_proxy: Any) -> None:
    """With verify_certificates=False the same server is accepted, without a warning."""
    options = {"basic_auth": ("bob", PASSWORD), "verify_certificates": False}
    assert (await connect(cls, tls_proxy.url, **options).check()).version


async def test_secrets_are_in_no_text(
    connect: Any, scripted: Any, es: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At debug level, over a good call, a refused one, an unreachable server and a crash, no log
    line, message, traceback or repr holds a secret or its base64."""
    caplog.set_level(logging.DEBUG)

    async def answer(request: Any, _: Any) -> bytes:
        if "good" in request.path:
            return es.reply(es.found(es.hit()))
        given = request.headers.get("authorization")
        return es.reply({"error": {"type": "security_exception", "reason": f"no: {given}"}}, 401)

    server = scripted(answer)
    texts: list[str] = []
    accounts: list[tuple[Any, dict[str, Any]]] = [
        (ElasticsearchRetriever, {"api_key": API_KEY}),
        (ElasticsearchRetriever, {"basic_auth": ("bob", PASSWORD)}),
        (OpenSearchRetriever, {"basic_auth": ("bob", PASSWORD)}),
    ]
    for cls, options in accounts:
        for url in (server.url, "http://127.0.0.1:1"):
            retriever = connect(cls, url, **options)
            texts += [repr(retriever), repr(vars(retriever)), retriever.source]
            for index in ("good", "bad"):
                try:
                    texts.append(repr(await retriever.search(Query("x", index=index))))
                except RetrievalError as error:
                    texts += [str(error), repr(error), repr(error.details)]
                    texts.append("".join(traceback.format_exception(error)))
    assert server.requests[0].headers["authorization"].endswith(API_KEY)
    texts += [record.getMessage() for record in caplog.records] + [caplog.text]
    assert not [(s, text) for s in SECRETS for text in texts if s in text]
    assert any("***" in text for text in texts)


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://bob:{PASSWORD}@host",
        f"bob:{PASSWORD}@host:9200",
        f"http://bob:{PASSWORD}@host:port",
        f"http://bob:{PASSWORD}@",
    ],
)
def test_a_bad_url_is_refused_without_showing_it(url: str) -> None:
    """The message of a URL that can't be parsed does not quote its password."""
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    shown = "".join(traceback.format_exception(caught.value)) + str(caught.value)
    assert PASSWORD not in shown.replace(url, "") or PASSWORD not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_addresses_from_the_environment() -> None:
    """Variables name the cluster; the repr shows addresses and no secret."""
    address = from_environment(
        {
            "PHLOEM_ES_URL": "https://a.example, http://[::1]:9201/es",
            "PHLOEM_ES_USER": "bob",
            "PHLOEM_ES_PASSWORD": PASSWORD,
            "PHLOEM_ES_CA": "/ca.pem",
        },
        "PHLOEM_ES",
    )
    assert address is not None
    assert address.urls == ("https://a.example:443", "http://[::1]:9201/es")
    assert address.basic_auth == ("bob", PASSWORD)
    assert PASSWORD not in repr(address) + str(address)
    assert from_environment({}, "PHLOEM_ES") is None
    with pytest.raises(ConfigError, match="both"):
        from_environment(
            {"PHLOEM_ES_URL": "http://a", "PHLOEM_ES_USER": "b", "PHLOEM_ES_API_KEY": "c"},
            "PHLOEM_ES",
        )


def test_percent_encoded_credentials_in_a_url() -> None:
    """User and password are decoded, and masked in both forms where text is scrubbed."""
    address = Address.parse("http://b%40b:p%2Fw@h:1")
    assert address.urls == ("http://h:1",)
    assert address.basic_auth == ("b@b", "p/w")
    assert address.scrub("said p/w and " + base64.b64encode(b"b@b:p/w").decode()) == (
        "said *** and ***"
    )


async def test_the_default_retriever_follows_the_environment(tmp_path: Path) -> None:
    """Elasticsearch if its URL is set, else OpenSearch, else the embedded folder."""
    folder = {"PHLOEM_INDEX_DIR": str(tmp_path)}
    es_url, os_url = {"PHLOEM_ES_URL": "http://e:1"}, {"PHLOEM_OPENSEARCH_URL": "http://o:1"}
    assert str(tmp_path) in default_retriever(folder).source
    assert default_retriever(folder | os_url).source == "http://o:1"
    assert default_retriever(folder | os_url | es_url).source == "http://e:1"
    home = default_retriever({"XDG_DATA_HOME": str(tmp_path)})
    assert str(tmp_path / "phloem" / "indexes") in home.source
