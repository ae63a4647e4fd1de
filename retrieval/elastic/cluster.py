"""What is known of a server and its indexes: product, version, vectors, fields.

What lives here: the questions and a cache of the answers that don't change by themselves. What
does not: searching (`searching.py`) and storing (`storing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from phloem.errors import FieldNotFound, IncompatibleServer
from phloem.retrieval.elastic.bodies import Dialect, FieldMap
from phloem.retrieval.elastic.caller import Caller
from phloem.retrieval.elastic.failures import whole
from phloem.retrieval.elastic.transport import not_json, part

__all__ = ["Cluster", "ServerInfo", "Vectors", "index_path"]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers at an address."""

    product: Dialect
    version: str
    name: str


@dataclass(frozen=True, slots=True)
class Vectors:
    """What an index's mapping says of its vectors (`dims` is None if it has none), and the field
    types that it was made with."""

    dims: int | None
    embedder: str | None
    model: Mapping[str, Any] = field(default_factory=dict)


def index_path(index: str, call: str = "") -> str:
    """The path of an API call about `index`."""
    return f"/{quote(index, safe=',*')}{call}"


class Cluster:
    """The questions. `seconds` is the time each of them may take."""

    def __init__(self, caller: Caller, fields: FieldMap, seconds: float) -> None:
        self.caller = caller
        self.fields = fields
        self.seconds = seconds
        self._info: ServerInfo | None = None
        self._vectors: dict[str, Vectors] = {}
        self._known_fields: dict[str, set[str]] = {}

    async def info(self) -> ServerInfo:
        """Product and version, asked once."""
        if self._info is None:
            self._info = await self.ask_info(self.seconds)
        return self._info

    async def ask_info(self, seconds: float) -> ServerInfo:
        """Product and version, asked now: also the check that the server can be used."""
        address = self.caller.address
        body = await self.caller.call("GET", "/", index="", seconds=seconds)
        version = body.get("version") if isinstance(body, Mapping) else None
        if not isinstance(version, Mapping) or "number" not in version:
            raise not_json(address, 200, body)
        product: Dialect = (
            "opensearch" if version.get("distribution") == "opensearch" else "elasticsearch"
        )
        number = str(version["number"])
        major = (
            int(number.split(".", maxsplit=1)[0])
            if number.split(".", maxsplit=1)[0].isdigit()
            else 0
        )
        if product == "elasticsearch" and 0 < major < 7:
            raise IncompatibleServer(
                f"the server at {address} is Elasticsearch {number}; phloem needs 7.17 or later",
                hint="upgrade the server",
                kind="version",
            )
        return ServerInfo(product, number, str(body.get("cluster_name", "")))

    async def vectors(self, index: str, *, fresh: bool = False) -> Vectors:
        """The vectors of `index`, asked once unless `fresh`. Raises `IndexNotFound`."""
        if fresh or index not in self._vectors:
            path = index_path(index, "/_mapping")
            body = await self.caller.call("GET", path, index=index, seconds=self.seconds)
            mappings = [part(self.caller.address, entry, "mappings") for entry in body.values()]
            self._vectors[index] = vectors_in(mappings[0] if mappings else {}, self.fields)
        return self._vectors[index]

    async def check_fields(self, index: str, names: Iterable[str]) -> None:
        """Raise `FieldNotFound` for the first of `names` that no document of `index` could have.

        A field that was there once is not asked for again; an empty index has no fields yet.
        """
        known = self._known_fields.setdefault(index, set())
        unknown = sorted(set(names) - known)
        if not unknown or await self.count(index) == 0:
            return
        found = await self._fields(index, ",".join(self.fields.path(name) for name in unknown))
        for name in unknown:
            if self.fields.path(name) not in found:
                there = [field for field in await self._fields(index, "*") if field[0] != "_"]
                raise FieldNotFound(
                    f"index {index!r} at {self.caller.address} has no field {name!r}",
                    hint=f"fields that it has: {', '.join(sorted(there)[:20]) or 'none'}",
                    index=index,
                    field=name,
                )
        known.update(unknown)

    async def exists(self, index: str) -> bool:
        """Whether a pattern of index names names any."""
        path = index_path(index, "/_mapping")
        return bool(await self.caller.call("GET", path, index=index, seconds=self.seconds))

    async def count(self, index: str) -> int:
        """Number of documents. Raises `IndexNotFound`."""
        path = index_path(index, "/_count")
        body = await self.caller.call("GET", path, index=index, seconds=self.seconds)
        whole(body, index, self.caller.address, "counted")
        return int(part(self.caller.address, body, "count"))

    async def _fields(self, index: str, pattern: str) -> Mapping[str, Any]:
        body = await self.caller.call(
            "GET",
            index_path(index, "/_field_caps"),
            index=index,
            seconds=self.seconds,
            params={"fields": pattern},
        )
        fields: Mapping[str, Any] = body.get("fields", {})
        return fields


def vectors_in(mappings: Mapping[str, Any], fields: FieldMap) -> Vectors:
    """What one index's mappings say of its vectors."""
    field = mappings.get("properties", {}).get(fields.vector, {})
    dims = field.get("dims") or field.get("dimension")
    kept = mappings.get("_meta", {}).get("phloem", {})
    return Vectors(dims, kept.get("embedder"), kept.get("fields", {}))
