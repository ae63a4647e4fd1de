"""Results of whole steps, kept across runs. Off unless a run is given a store.

What lives here: which steps may be answered from the store, and their keys. What does not: the
store, which is any mutable mapping of texts to JSON data.
"""

from __future__ import annotations

from typing import Any

from phloem.programs.effects import Generate
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.record import Entry, digest
from phloem.programs.executor.run import Site
from phloem.programs.protocol import SamplingParams

__all__ = ["find", "store"]


async def _key(branch: Branch, params: SamplingParams, request: str) -> str | None:
    """The key of a step whose result depends on nothing else (it is greedy, or the run was
    given a seed), or None."""
    settings = branch.run.settings
    if settings.step_cache is None or (params.temperature > 0 and settings.seed is None):
        return None
    backend = await branch.run.backend()
    seed = (params.seed, branch.path) if params.temperature > 0 else None
    return digest(backend.capabilities.fingerprint, request, seed)


async def find(
    branch: Branch, effect: Generate, params: SamplingParams, request: str, site: Site
) -> Entry | None:
    """The stored result as an entry, which is added to the run's record."""
    kept = branch.run.settings.step_cache
    key = await _key(branch, params, request)
    if key is None or kept is None or key not in kept:
        return None
    entry = Entry("gen", effect.name, request, kept[key], site.node, site.line)
    branch.run.record.add(branch.path, entry)
    return entry


async def store(branch: Branch, params: SamplingParams, request: str, outcome: Any) -> None:
    """Keep a step's result, if it may be given out again."""
    kept = branch.run.settings.step_cache
    key = await _key(branch, params, request)
    if key is not None and kept is not None:
        kept[key] = outcome
