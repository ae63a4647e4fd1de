"""The official `elasticsearch` client as a `Transport`.

What lives here: the client's set-up and its exceptions. What does not: retries (`caller.py`);
the client's own are switched off, since each would start a new timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import elastic_transport
import elasticsearch

from phloem.errors import IncompatibleServer
from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.transport import CONNECTIONS, Reply, not_json, unreachable, untrusted

__all__ = ["ElasticsearchTransport"]


class ElasticsearchTransport:
    """See `transport.Transport`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._client = elasticsearch.AsyncElasticsearch(
            list(address.urls),
            basic_auth=address.basic_auth,
            api_key=address.api_key,
            connections_per_node=CONNECTIONS,
            request_timeout=None,
            max_retries=0,
            retry_on_timeout=False,
            **address.tls_options(),
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any],
        body: Any,
        headers: Mapping[str, str],
    ) -> Reply:
        """See `transport.Transport.request`."""
        sent = {"accept": "application/json", **headers}
        if body is not None:
            kind = "x-ndjson" if isinstance(body, list) else "json"
            sent["content-type"] = f"application/{kind}"
        try:
            answer = await self._client.perform_request(
                method, path, params=params, headers=sent, body=body
            )
        except elasticsearch.UnsupportedProductError as error:
            raise self._other_product(error) from None
        except elasticsearch.ApiError as error:
            return Reply(error.meta.status, error.body)
        except elastic_transport.TlsError as error:
            raise untrusted(self._address, error.message) from None
        except elastic_transport.SerializationError as error:
            raise not_json(self._address, 200, error.message) from None
        except elastic_transport.TransportError as error:
            raise unreachable(self._address, error.message) from None
        return Reply(answer.meta.status, answer.body)

    async def close(self) -> None:
        """See `transport.Transport.close`."""
        await self._client.close()

    def _other_product(self, error: elasticsearch.UnsupportedProductError) -> IncompatibleServer:
        kind = error.meta.headers.get("content-type") or ""
        if "json" not in kind:
            return not_json(self._address, error.meta.status, error.body)
        return IncompatibleServer(
            f"the server at {self._address} is not Elasticsearch"
            " (its answer lacks the header X-Elastic-Product)",
            hint="for OpenSearch use OpenSearchRetriever (PHLOEM_OPENSEARCH_URL)",
            kind="product",
        )
