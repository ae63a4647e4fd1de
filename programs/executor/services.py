"""Effects that ask something outside the model: retrievals and tools.

What lives here: doing them, with their limits, records and events. What does not: any index
or tool. Tools that block run on a small pool of threads; nothing else does.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from phloem.errors import RetrievalError
from phloem.programs.effects import CallTool, Search, well_formed
from phloem.programs.events import Retrieved, StepFinished
from phloem.programs.executor import hub
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.limits import attempts, limited
from phloem.programs.executor.record import Entry, digest
from phloem.programs.executor.run import Run, Site
from phloem.programs.executor.values import decode, encode, show
from phloem.retrieval.base import Hits, Query

__all__ = ["call_tool", "search", "start_search"]

TOOL_THREADS = 8
_pools: list[ThreadPoolExecutor] = []
"""The threads of tools; those of programs that run inside a tool have others (the second pool, and
so on), so that no tool waits for a thread that waits for it."""
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("phloem_tool_depth", default=0)
# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_pools.clear)


async def search(
    branch: Branch, effect: Search, site: Site, early: Awaitable[Hits] | None = None
) -> Hits:
    """Retrieve and keep the hits. `early` is the same search, started before its place."""
    run = branch.run
    path = branch.path + effect.slot
    if isinstance(effect.query, str):  # what else there may be the retriever refuses
        well_formed(effect.query, "the query")
    request = digest(effect.query, dict(effect.options))
    started = time.monotonic()
    entry = run.record.take(path, "retrieve", effect.name, request)
    if entry is not None:
        hits = Hits.from_json(entry.outcome)
    else:
        hits = await (early if early is not None else start_search(run, effect))
        run.record.add(
            path,
            Entry("retrieve", effect.name, request, hits.to_json(), site.node, site.line),
        )
    if not effect.slot:  # else the variable was set when the search began, in the program's order
        branch.set(effect.name, hits)
    run.emit(
        Retrieved,
        site,
        branch.path,
        name=effect.name,
        query=effect.query,
        index=effect.options.get("index", Query.__dataclass_fields__["index"].default),
        hits=tuple(hit.to_json() for hit in hits),
        took_ms=(time.monotonic() - started) * 1000,
        partial=hits.partial,
        causes=hits.causes,
        fallback=hits.fallback,
        replayed=entry is not None,
    )
    return hits


async def start_search(run: Run, effect: Search) -> Hits:
    """Ask the retriever, with the effect's limits."""
    retriever = await run.retriever()
    query = Query(effect.query, timeout=effect.timeout, **effect.options)
    work = attempts(lambda: hub.apart(lambda: retriever.search(query)), effect.retries)
    hits = await limited(work, effect.timeout, f"the retrieval {effect.query!r}")
    if not isinstance(hits, Hits):
        raise RetrievalError(
            f"the retriever {type(retriever).__name__} answered with {type(hits).__name__}",
            hint="its search() returns Hits(tuple of Hit): see retrieval/base.py",
        )
    return hits


async def call_tool(branch: Branch, effect: CallTool, site: Site) -> Any:
    """Call the function on the pool (or await it, if it is async) and record its result."""
    run = branch.run
    request = digest(effect.name, list(effect.args), dict(effect.kwargs))
    path = branch.path + effect.slot
    entry = run.record.take(path, "tool", effect.name, request)
    if entry is not None:
        value = decode(entry.outcome)
    else:
        await run.record.begin(path, "tool", effect.name, repeatable=effect.idempotent)
        work = attempts(lambda: _call(effect), effect.retries, lambda _error: True)
        value = await limited(work, effect.timeout, f"the tool {effect.name!r}")
        run.record.add(
            path,
            Entry(
                "tool",
                effect.name,
                request,
                encode(value) if run.recording else None,
                site.node,
                site.line,
            ),
        )
    run.emit(
        StepFinished,
        site,
        branch.path,
        kind="tool",
        name=effect.name,
        text="",
        value=show(value),
        replayed=entry is not None,
    )
    return value


async def _call(effect: CallTool) -> Any:
    if inspect.iscoroutinefunction(effect.function):
        return await hub.apart(lambda: effect.function(*effect.args, **effect.kwargs))
    depth = _depth.get()
    while len(_pools) <= depth:
        _pools.append(ThreadPoolExecutor(TOOL_THREADS, thread_name_prefix="phloem-tool"))
    context = contextvars.copy_context()
    context.run(_depth.set, depth + 1)
    call = functools.partial(effect.function, *effect.args, **effect.kwargs)
    return await asyncio.get_running_loop().run_in_executor(
        _pools[depth], lambda: context.run(hub.contained, call)
    )
