"""Who may rebuild an index: one at a time, and never stopped for long by one that died.

What lives here: the next generation's name and its lock. What does not: filling it, and the switch
(`indexes.py`). The new generation is its own lock, since a server makes an index of one name only
once. Its mapping says who fills it and, every few seconds anew, that this is still so. A mark that
has grown old is of a process that died: the next rebuild takes a higher number and, once it is
done, removes what was left.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from phloem.errors import IndexLocked, IndexNotFound, RetrievalError
from phloem.retrieval.elastic.cluster import Cluster, index_path

__all__ = ["GENERATION", "generation", "kept_alive"]

GENERATION = r"-(\d{6})"
"""What a generation's name has after the index's."""

_MARK = "phloem_rebuild"
_BEAT_S = 5.0
_DEAD_S = 30.0


@asynccontextmanager
async def generation(
    cluster: Cluster, index: str, serving: Sequence[str]
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The name for the next generation of `index`, and the mark to make it with.

    `serving` are the indexes that the name stands for now. Whoever makes an index of that name has
    the lock. Afterwards what dead rebuilds left is removed. Raises `IndexLocked`, naming the
    process, if another rebuild is under way.
    """
    numbers = [int(found[1]) for name in serving if (found := re.search(GENERATION + "$", name))]
    left = []
    for name, mark in (await _unfinished(cluster, index, serving)).items():
        numbers.append(int(name[-6:]))
        if mark is None:
            continue  # not of a rebuild: somebody else's, or a copy
        if _alive(mark):
            raise _locked(cluster, index, mark)
        left.append(name)
    new = f"{index}-{max(numbers, default=0) + 1:06d}"
    try:
        yield new, _mark()
    except RetrievalError as error:
        if error.details.get("error_type") == "resource_already_exists_exception":
            raise _locked(cluster, index, {}) from None
        raise
    for name in left:
        await _call(cluster, "DELETE", name, params={"ignore_unavailable": "true"})


@asynccontextmanager
async def kept_alive(cluster: Cluster, name: str, meta: Mapping[str, Any]) -> AsyncIterator[None]:
    """While the block runs, the index `name`, made with `meta`, says that its rebuild goes on."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            body = {"_meta": {**meta, **_mark()}}
            await _call(cluster, "PUT", name, "/_mapping", body=body)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])
    if not beating.cancelled() and (error := beating.exception()) is not None:
        raise error


async def _unfinished(
    cluster: Cluster, index: str, serving: Sequence[str]
) -> dict[str, Mapping[str, Any] | None]:
    """The generations of `index` that do not serve, each with its mark."""
    try:
        found = await _call(cluster, "GET", f"{index}-*", "/_mapping")
    except IndexNotFound:
        return {}
    wanted = re.compile(re.escape(index) + GENERATION)
    return {
        name: entry.get("mappings", {}).get("_meta", {}).get(_MARK)
        for name, entry in found.items()
        if wanted.fullmatch(name) and name not in serving
    }


def _mark() -> dict[str, Any]:
    return {_MARK: {"host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}}


def _alive(mark: Mapping[str, Any]) -> bool:
    if mark["host"] == socket.gethostname():
        try:
            os.kill(mark["pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    return time.time() - float(mark["at"]) < _DEAD_S


def _locked(cluster: Cluster, index: str, mark: Mapping[str, Any]) -> IndexLocked:
    by = f" by process {mark['pid']} on {mark['host']}" if mark else ""
    return IndexLocked(
        f"index {index!r} at {cluster.caller.address} is being rebuilt{by}",
        hint=f"wait for it; if it was killed, the index is free after {_DEAD_S:g} s",
        index=index,
        **mark,
    )


async def _call(cluster: Cluster, method: str, index: str, call: str = "", **more: Any) -> Any:
    path = index_path(index, call)
    return await cluster.caller.call(method, path, index=index, seconds=cluster.seconds, **more)
