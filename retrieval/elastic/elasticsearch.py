"""The Elasticsearch retriever.

What lives here: its constructor. What does not: everything it shares with OpenSearch
(`server.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.bodies import FieldMap
from phloem.retrieval.elastic.elasticsearch_client import ElasticsearchTransport
from phloem.retrieval.elastic.server import ServerRetriever
from phloem.retrieval.embed.protocol import Embedder
from phloem.retrieval.fallback import Fallback

__all__ = ["ElasticsearchRetriever"]


class ElasticsearchRetriever(ServerRetriever):
    """Searches an Elasticsearch cluster, 8 or later, through the official client.

    `urls` may hold a user and password; or give `basic_auth` or `api_key`. `ca_file` is the
    certificate authority of a server with TLS. None of these is ever shown. The other
    parameters are those of `ServerRetriever`.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | Address,
        *,
        basic_auth: tuple[str, str] | None = None,
        api_key: str | None = None,
        ca_file: str | None = None,
        verify_certificates: bool = True,
        timeout: float = 10.0,
        retries: int = 2,
        fields: FieldMap | None = None,
        embedder: Embedder | None = None,
        fuse_on_server: bool | None = None,
        fallback: Fallback = None,
    ) -> None:
        address = Address.parse(
            urls,
            basic_auth=basic_auth,
            api_key=api_key,
            ca_file=ca_file,
            verify_certificates=verify_certificates,
        )
        super().__init__(
            address,
            ElasticsearchTransport,
            timeout=timeout,
            retries=retries,
            fields=fields,
            embedder=embedder,
            fuse_on_server=fuse_on_server,
            fallback=fallback,
        )
