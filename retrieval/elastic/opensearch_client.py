"""The official `opensearch-py` client as a `Transport`.

What lives here: the client's set-up and its exceptions. What does not: retries (`caller.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import opensearchpy

from phloem.errors import ConfigError
from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.transport import CONNECTIONS, Reply, not_json, unreachable, untrusted

__all__ = ["OpenSearchTransport"]


class OpenSearchTransport:
    """See `transport.Transport`."""

    def __init__(self, address: Address) -> None:
        if address.api_key:
            raise ConfigError(
                "OpenSearch takes a user and password, not an API key",
                hint="give basic_auth=, or user:password@ in the URL",
            )
        self._address = address
        self._client = opensearchpy.AsyncOpenSearch(
            list(address.urls),
            http_auth=address.basic_auth,
            maxsize=CONNECTIONS,
            timeout=None,
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
        sent = dict(headers)
        if isinstance(body, list):
            body = "".join(json.dumps(line) + "\n" for line in body)
            sent["content-type"] = "application/x-ndjson"
        try:
            answer = await self._client.transport.perform_request(
                method, path, params=dict(params), body=body, headers=sent
            )
        except opensearchpy.exceptions.SSLError as error:
            raise untrusted(self._address, error.error) from None
        except opensearchpy.exceptions.ConnectionError as error:
            certificate = "certificate" in str(error.error).lower()
            kind = untrusted if certificate else unreachable
            raise kind(self._address, error.error) from None
        except opensearchpy.exceptions.TransportError as error:
            return Reply(int(error.status_code), error.info)
        except opensearchpy.exceptions.SerializationError as error:
            raise not_json(self._address, 200, error) from None
        return Reply(200, answer)

    async def close(self) -> None:
        """See `transport.Transport.close`."""
        await self._client.close()
