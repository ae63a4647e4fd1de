"""API keys: who may call, and under which name they are counted.

What lives here: the hashed key file and the comparison. What does not: where in a request a
key stands (`gatekeeper.py`). Keys are random and long, so a plain SHA-256 is enough: there is
nothing to guess. Only hashes are kept, and all of them are compared in constant time, so
neither the file nor the timing tells a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from phloem.errors import ConfigError
from phloem.server.settings import Settings

__all__ = ["Keys", "hash_key"]

_LINE = re.compile(r"([\w.@-]+):sha256:([0-9a-f]{64})")


def hash_key(name: str, key: str) -> str:
    """The line of a key file for `key`."""
    return f"{name}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"


class Keys:
    """The keys that are let in, by name. Empty: everybody is."""

    def __init__(self, hashes: dict[str, bytes]) -> None:
        self._hashes = hashes

    @classmethod
    def from_settings(cls, settings: Settings) -> Keys:
        """The keys of the settings. Raises `ConfigError` naming the line that is wrong."""
        lines = []
        if settings.api_key_file is not None:
            try:
                lines = settings.api_key_file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"the key file can't be read: {error}") from None
        hashes: dict[str, bytes] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line.strip())
            if found is None:
                # The line is not shown: it may be a key that somebody forgot to hash.
                raise ConfigError(
                    f"{settings.api_key_file}, line {number} is not NAME:sha256:HEX",
                    hint="make lines with `phloem serve --hash-key NAME`",
                )
            hashes[found[1]] = bytes.fromhex(found[2])
        if settings.api_key is not None:
            key = settings.api_key.get_secret_value()
            hashes["default"] = hashlib.sha256(key.encode()).digest()
        if settings.api_key_file is not None and not hashes:
            raise ConfigError(f"{settings.api_key_file} holds no key")
        return cls(hashes)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def name_of(self, key: str) -> str | None:
        """The name that `key` belongs to, or None."""
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        name = None
        for candidate, kept in self._hashes.items():
            if hmac.compare_digest(digest, kept):
                name = candidate
        return name
