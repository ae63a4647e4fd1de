"""Log-probabilities of whole texts, for clients that score choices by themselves.

What lives here: the detour over `Session.score`. What does not: phloem's own `select`, which
scores choices without repeating their prefix.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from phloem.errors import Unsupported
from phloem.programs.protocol import Backend

__all__ = ["score_texts"]


async def score_texts(
    backend: Backend, texts: Sequence[str]
) -> list[tuple[tuple[int, ...], tuple[float | None, ...]]]:
    """Per text its tokens and their log-probabilities, the first token's None."""
    if not backend.capabilities.score:
        raise Unsupported("this engine can't score text", param="return_logprob")
    session = await backend.open(f"score-{uuid.uuid4().hex[:12]}")
    try:
        scored = await session.score(texts, empty_context=True)
    finally:
        await session.close()
    return [(one.tokens, one.unconditional) for one in scored.choices]
