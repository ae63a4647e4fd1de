"""A server's address and credentials, and how to keep the latter out of all text.

What lives here: parsing, and the scrubbing of messages. What does not: connections.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from phloem.errors import ConfigError

__all__ = ["Address", "from_environment"]

_MASK = "***"
_SETTINGS = ("URL", "API_KEY", "USER", "PASSWORD", "CA")


@dataclass(frozen=True)
class Address:
    """Where servers of one cluster are, and how to be let in. Its repr shows no secret."""

    urls: tuple[str, ...]
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    verify_certificates: bool = True

    @classmethod
    def parse(
        cls,
        urls: str | Iterable[str] | Address,
        *,
        basic_auth: tuple[str, str] | None = None,
        api_key: str | None = None,
        ca_file: str | None = None,
        verify_certificates: bool = True,
    ) -> Address:
        """An address from one or more URLs; a user and password in a URL are taken out of it.
        An address stays as it is.

        Raises `ConfigError`, which does not show the URL's credentials.
        """
        if isinstance(urls, Address):
            return urls
        clean = []
        for url in [urls] if isinstance(urls, str) else urls:
            bare, found = _split_credentials(url)
            clean.append(bare)
            basic_auth = basic_auth or found
        if not clean:
            raise ConfigError("no server URL is given", hint="for example http://localhost:9200")
        if basic_auth and api_key:
            raise ConfigError("both a password and an API key are given", hint="give one of them")
        return cls(tuple(clean), basic_auth, api_key or None, ca_file, verify_certificates)

    def __str__(self) -> str:
        return ", ".join(self.urls)

    def tls_options(self) -> dict[str, Any]:
        """What both official clients take to check certificates; nothing without https."""
        if not any(url.startswith("https") for url in self.urls):
            return {}
        options: dict[str, Any] = {
            "verify_certs": self.verify_certificates,
            "ssl_show_warn": False,
        }
        if self.ca_file:
            options["ca_certs"] = self.ca_file
        return options

    def scrub(self, text: str) -> str:
        """`text` with every form of the credentials masked."""
        for secret in self._secrets():
            text = text.replace(secret, _MASK)
        return text

    def _secrets(self) -> list[str]:
        plain = [self.api_key] if self.api_key else []
        if self.basic_auth:
            user, password = self.basic_auth
            plain += [f"{user}:{password}", password]
        encoded = [base64.b64encode(text.encode()).decode() for text in plain]
        return sorted((text for text in plain + encoded if text), key=len, reverse=True)


def _split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    wrong = ConfigError(
        "a server URL is not of the form http(s)://[user:password@]host[:port]",
        hint="for example http://localhost:9200",
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None  # the original message may quote the password
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = port or (443 if parts.scheme == "https" else 9200)
    bare = urlunsplit((parts.scheme, f"{host}:{port}", parts.path.rstrip("/"), "", ""))
    if parts.username is None:
        return bare, None
    return bare, (unquote(parts.username), unquote(parts.password or ""))


def from_environment(environment: Mapping[str, str], prefix: str) -> Address | None:
    """The address that PREFIX_URL (several: separated by commas) and its companions
    PREFIX_API_KEY, PREFIX_USER, PREFIX_PASSWORD and PREFIX_CA name, or None without a URL."""
    given = {name: environment.get(f"{prefix}_{name}", "") for name in _SETTINGS}
    urls = [url.strip() for url in given["URL"].split(",") if url.strip()]
    if not urls:
        return None
    return Address.parse(
        urls,
        basic_auth=(given["USER"], given["PASSWORD"]) if given["USER"] else None,
        api_key=given["API_KEY"] or None,
        ca_file=given["CA"] or None,
    )
