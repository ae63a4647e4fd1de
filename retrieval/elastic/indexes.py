"""Makes, rebuilds, reads and removes indexes on a server.

What lives here: names and aliases. What does not: writing documents (`storing.py`), and who may
rebuild (`rebuilding.py`). The index
`handbook` is an alias of `handbook-000001`; a rebuild fills `handbook-000002` and then switches
the alias in one step, so that searches never see half of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from phloem.errors import IndexNotFound, RetrievalError
from phloem.retrieval.base import AddReport, Document, IndexInfo
from phloem.retrieval.documents import check_index_name, id_list
from phloem.retrieval.elastic.bodies import FINGERPRINT, filter_clause, meta_of
from phloem.retrieval.elastic.cluster import Cluster, Vectors, index_path, vectors_in
from phloem.retrieval.elastic.failures import whole
from phloem.retrieval.elastic.mapping import index_mapping, model_properties, vector_property
from phloem.retrieval.elastic.rebuilding import GENERATION, generation, kept_alive
from phloem.retrieval.elastic.storing import Storing
from phloem.retrieval.elastic.transport import part
from phloem.retrieval.embed.known import embedder_named
from phloem.retrieval.embed.protocol import Embedder, check_dims, check_embedder
from phloem.retrieval.filters import Filter

__all__ = ["Indexes"]

_PAGE = 1_000


class Indexes:
    """The indexes of one cluster. See `base.Index` for what each method promises."""

    def __init__(self, cluster: Cluster, embedder: Embedder | None) -> None:
        self._cluster = cluster
        self._embedder = embedder
        self._storing = Storing(cluster)

    async def create(self, index: str, model: type | None) -> None:
        """An empty index under the alias `index`."""
        check_index_name(index)
        if await self._concrete(index):
            raise RetrievalError(f"index {index!r} exists already", index=index)
        fields = model_properties(model) if model else None
        await self._make(f"{index}-000001", self._embedder, fields=fields, alias=index)

    async def add(self, docs: Iterable[Document], index: str) -> AddReport:
        """Store in `index`, which is made if it does not exist."""
        check_index_name(index)
        if not await self._concrete(index):
            await self._make_first(index)
        kept = await self._cluster.vectors(index, fresh=True)
        embedder = self._embedder_of(index, kept)
        if embedder is not None and kept.dims is not None:
            what = f"the embedder {embedder.name!r}"
            check_dims(embedder.dims, kept.dims, what=what, index=index)
            check_embedder(embedder.name, kept.embedder, index=index)
        return await self._fill(docs, index, kept.dims, embedder)

    async def rebuild(self, docs: Iterable[Document], index: str, model: type | None) -> AddReport:
        """Fill a new generation, then switch the alias."""
        check_index_name(index)
        old = await self._own(index)
        kept = await self._cluster.vectors(index, fresh=True) if old else Vectors(None, None)
        embedder = self._embedder_of(index, kept)
        fields = model_properties(model) if model else kept.model
        async with generation(self._cluster, index, old) as (new, mark):
            meta = await self._make(new, embedder, fields=fields, mark=mark)
            filled = False
            try:
                async with kept_alive(self._cluster, new, meta):
                    dims = embedder.dims if embedder else None
                    report = await self._fill(docs, new, dims, embedder)
                if not report.failed:
                    await self._switch(index, old, new)
                    filled = True
            finally:
                if not filled:
                    await self._call("DELETE", new, params={"ignore_unavailable": "true"})
        return report

    async def _switch(self, index: str, old: list[str], new: str) -> None:
        """Let the name `index` stand for `new`, in one step, and remove `old`."""
        # A plain index of that name has to go in the same step in which the alias comes.
        plain = old == [index]
        actions: list[dict[str, Any]] = [{"add": {"index": new, "alias": index}}]
        for name in old:
            gone = {"index": name} if plain else {"index": name, "alias": index}
            actions.append({"remove_index" if plain else "remove": gone})
        await self._call("POST", "", "/_aliases", body={"actions": actions})
        for name in [] if plain else old:
            await self._call("DELETE", name)
        await self._cluster.vectors(index, fresh=True)

    async def drop(self, index: str) -> None:
        """Remove what the name stands for."""
        names = await self._own(check_index_name(index))
        if not names:
            raise self._missing(index)
        for name in names:
            await self._call("DELETE", name)

    async def delete(self, ids: Iterable[str], index: str) -> int:
        """Remove documents; returns how many there were."""
        lines = [{"delete": {"_id": id_}} for id_ in id_list(ids)]
        await self._cluster.vectors(index)  # a bulk call would make a missing index
        removed = 0
        for start in range(0, len(lines), _PAGE):
            some: Any = lines[start : start + _PAGE]
            body = await self._call("POST", index, "/_bulk", body=some)
            items = part(self._cluster.caller.address, body, "items")
            results = [item["delete"] for item in items]
            refused = [r for r in results if r["status"] >= 300 and r["status"] != 404]
            if refused:
                raise RetrievalError(
                    f"{len(refused)} documents of {index!r} could not be deleted, the first:"
                    f" {refused[0].get('_id')}: {refused[0].get('error')}",
                    index=index,
                )
            removed += sum(result["status"] < 300 for result in results)
        await self._storing.refresh(index)
        return removed

    async def count(self, index: str) -> int:
        """Number of documents."""
        return await self._cluster.count(index)

    async def get(self, ids: Iterable[str], index: str) -> list[Document]:
        """The documents that exist, in the order asked."""
        fields = self._cluster.fields
        found = await self._fetch(ids, index, {"_source_excludes": fields.vector})
        return [
            Document(
                doc["_id"],
                doc["_source"].get(fields.text, ""),
                doc["_source"].get(fields.title),
                meta_of(doc["_source"], fields),
            )
            for doc in found
        ]

    async def fingerprints(self, ids: Iterable[str], index: str) -> dict[str, str]:
        """The stored fingerprints of the documents that have one."""
        found = await self._fetch(ids, index, {"_source_includes": FINGERPRINT})
        return {
            doc["_id"]: doc["_source"][FINGERPRINT]
            for doc in found
            if FINGERPRINT in doc.get("_source", {})
        }

    async def ids(self, index: str, wanted: Filter | None) -> list[str]:
        """The ids of all documents that match."""
        clause = filter_clause(wanted, self._cluster.fields) if wanted else {"match_all": {}}
        body = {"size": _PAGE, "query": clause, "_source": False, "sort": ["_doc"]}
        page = await self._call("POST", index, "/_search", body=body, params={"scroll": "1m"})
        found: list[str] = []
        address = self._cluster.caller.address
        try:
            while hits := part(address, page, "hits", "hits"):
                # Whoever asks takes what is not listed as not there.
                whole(page, index, address, "listed")
                found += [hit["_id"] for hit in hits]
                again = {"scroll": "1m", "scroll_id": part(address, page, "_scroll_id")}
                page = await self._call("POST", "", "/_search/scroll", body=again)
            whole(page, index, address, "listed")
        finally:
            if scroll := page.get("_scroll_id"):
                await self._call("DELETE", "", "/_search/scroll", body={"scroll_id": scroll})
        return sorted(found)

    async def indexes(self) -> list[IndexInfo]:
        """Every index but the server's own, under its alias where it has one."""
        rows = await self._call("GET", "", "/_cat/indices", params={"format": "json", "bytes": "b"})
        aliases = await self._call("GET", "", "/_alias")
        mappings = await self._call("GET", "", "/_mapping")
        infos = []
        for row in rows:
            name, documents = row["index"], int(row.get("docs.count") or 0)
            if name.startswith("."):
                continue
            kept = vectors_in(mappings.get(name, {}).get("mappings", {}), self._cluster.fields)
            size = _bytes(row.get("store.size"))
            infos += [
                IndexInfo(shown, documents, size, kept.dims, kept.embedder)
                for shown in aliases.get(name, {}).get("aliases") or [name]
            ]
        return sorted(infos, key=lambda info: info.name)

    def _embedder_of(self, index: str, kept: Vectors) -> Embedder | None:
        """The given embedder, or else the one that the index was filled with."""
        if self._embedder is None and kept.embedder is not None:
            return embedder_named(kept.embedder, index)
        return self._embedder

    async def _fill(
        self, docs: Iterable[Document], index: str, dims: int | None, embedder: Embedder | None
    ) -> AddReport:
        return await self._storing.add(
            docs,
            index=index,
            dims=dims,
            embedder=embedder,
            keep_vectors=partial(self._add_vector_field, index, embedder),
        )

    async def _make_first(self, index: str) -> None:
        try:
            await self._make(f"{index}-000001", self._embedder, alias=index)
        except RetrievalError:
            if not await self._concrete(index):  # else another process has just made it
                raise

    async def _make(
        self,
        name: str,
        embedder: Embedder | None,
        *,
        fields: Mapping[str, Any] | None = None,
        alias: str | None = None,
        mark: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make an index with typed `fields` of metadata; returns its mapping's `_meta`."""
        body = index_mapping(
            self._cluster.fields,
            (await self._cluster.info()).product,
            dims=embedder.dims if embedder else None,
            embedder=embedder.name if embedder else None,
            typed=fields,
        )
        if alias:
            body["aliases"] = {alias: {}}
        meta: dict[str, Any] = body["mappings"]["_meta"]
        meta.update(mark or {})
        await self._call("PUT", name, body=body)
        return meta

    async def _add_vector_field(self, index: str, embedder: Embedder | None, dims: int) -> None:
        """Let an index that was made without vectors keep them; what it says of itself stays."""
        found = await self._call("GET", index, "/_mapping")
        kept = next(iter(found.values()))["mappings"].get("_meta", {})
        field = vector_property(dims, (await self._cluster.info()).product)
        body = {
            "properties": {self._cluster.fields.vector: field},
            "_meta": {
                **kept,
                "phloem": {
                    **kept.get("phloem", {}),
                    "embedder": embedder.name if embedder else None,
                },
            },
        }
        await self._call("PUT", index, "/_mapping", body=body)

    async def _concrete(self, index: str) -> list[str]:
        """The names of the indexes that `index` stands for; none if it does not exist."""
        try:
            body = await self._call("GET", index, "/_settings")
        except IndexNotFound:
            return []
        return sorted(body)

    async def _own(self, index: str) -> list[str]:
        """The same, if they are phloem's to remove: the index itself, or its generations."""
        names = await self._concrete(index)
        other = [
            name
            for name in names
            if name != index and not re.fullmatch(re.escape(index) + GENERATION, name)
        ]
        if other:
            raise RetrievalError(
                f"{index!r} at {self._cluster.caller.address} is an alias of {', '.join(other)},"
                " which phloem did not make",
                hint="name the index itself, or remove the alias",
                index=index,
            )
        return names

    async def _fetch(
        self, ids: Iterable[str], index: str, params: dict[str, str]
    ) -> list[dict[str, Any]]:
        wanted = id_list(ids)
        found: list[dict[str, Any]] = []
        for start in range(0, len(wanted), _PAGE):
            body: Any = {"ids": wanted[start : start + _PAGE]}
            page = await self._call("POST", index, "/_mget", body=body, params=params)
            docs = part(self._cluster.caller.address, page, "docs")
            found += [doc for doc in docs if doc.get("found")]
            if any("error" in doc for doc in docs):
                raise self._missing(index)
        return found

    async def _call(
        self,
        method: str,
        index: str,
        call: str = "",
        *,
        body: Any = None,
        params: dict[str, str] | None = None,
    ) -> Any:
        path = index_path(index, call) if index else call
        seconds = self._cluster.seconds
        return await self._cluster.caller.call(
            method, path, index=index, seconds=seconds, body=body, params=params
        )

    def _missing(self, index: str) -> IndexNotFound:
        return IndexNotFound(
            f"no index {index!r} at {self._cluster.caller.address}",
            hint=f"phloem index add PATH... --index {index}",
            index=index,
        )


_UNITS = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}


def _bytes(size: str | None) -> int:
    """The number of bytes in "1234", or in "1.2kb" from servers that ignore `bytes=b`."""
    found = re.fullmatch(r"([\d.]+)([kmgt]?b)?", size or "0")
    return int(float(found[1]) * _UNITS[found[2] or "b"]) if found else 0
