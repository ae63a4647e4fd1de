"""The process-wide defaults, under SGLang's names.

What lives here: setting the default engine and emptying its cache. What does not: engines.
"""

from __future__ import annotations

from phloem.programs import registry
from phloem.programs.executor import loop
from phloem.programs.protocol import Backend
from phloem.retrieval.base import Retriever

__all__ = ["flush_cache", "set_default_backend", "set_default_retriever"]


def set_default_backend(backend: Backend) -> None:
    """Use `backend` for every run that is not given one."""
    registry.set_default("backend", backend)


def set_default_retriever(retriever: Retriever) -> None:
    """Use `retriever` for every run that is not given one."""
    registry.set_default("retriever", retriever)


def flush_cache(backend: Backend | None = None) -> None:
    """Let the engine forget all KV that no running step needs."""
    chosen: Backend = backend if backend is not None else registry.default("backend")
    loop.call(chosen.flush_cache())
