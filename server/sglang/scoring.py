"""Log-probabilities of whole prompts, for clients that score choices by themselves.

What lives here: the detours over `Session.score`, for texts and for token ids. What does not:
phloem's own `select`, which scores choices without repeating their prefix.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from phloem.errors import Unsupported
from phloem.programs.protocol import Backend, ScoredChoice, Snapshot, Usage

__all__ = ["score_rows", "score_texts"]


async def score_texts(backend: Backend, texts: Sequence[str], namespace: str) -> list[ScoredChoice]:
    """Per text its tokens and, as `unconditional`, their log-probabilities, the first's None."""
    _check(backend)
    session = await backend.open(_name(), namespace=namespace)
    try:
        scored = await session.score(texts, empty_context=True)
    finally:
        await session.close()
    return list(scored.choices)


async def score_rows(
    backend: Backend, rows: Sequence[Sequence[int]], starts: Sequence[int], namespace: str
) -> list[tuple[ScoredChoice, Usage]]:
    """Per row of ids, the scores of its tokens after the one at its start, and what it cost.

    Rows with the same tokens up to there are scored together. Raises `Unsupported` for ids that
    the model does not have, or an engine without scores.
    """
    _check(backend)
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        groups.setdefault(tuple(row[: start + 1]), []).append(i)
    found: dict[int, tuple[ScoredChoice, Usage]] = {}
    for prefix, members in groups.items():
        snapshot = Snapshot(backend.capabilities.fingerprint, prefix, namespace=namespace)
        session = await backend.restore(snapshot, _name())
        try:
            scored = await session.score([tuple(rows[i][len(prefix) :]) for i in members])
        finally:
            await session.close()
        found |= {i: (c, scored.usage) for i, c in zip(members, scored.choices, strict=True)}
    return [found[i] for i in range(len(rows))]


def _check(backend: Backend) -> None:
    if not backend.capabilities.score:
        raise Unsupported("this engine can't score prompts", param="return_logprob")


def _name() -> str:
    return f"score-{uuid.uuid4().hex[:12]}"
