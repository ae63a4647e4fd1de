"""Retrieved documents as prompt text.

What lives here: `render`, pure text. What does not: counting tokens, which needs an engine
(`primitives.passages` passes the counter in).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from phloem.errors import CompileError
from phloem.retrieval.base import Hit

__all__ = ["Order", "render"]

Order = Literal["best_first", "best_last"]


def render(
    docs: Iterable[Hit],
    *,
    max_tokens: int | None = None,
    order: Order = "best_first",
    cite: bool = True,
    count: Callable[[str], int] | None = None,
) -> str:
    """The passages as text, numbered from [1] by rank with `cite`, parted by blank lines.

    Within `max_tokens` the best come first into the text: a passage that does not fit whole is
    cut at a word to what is left, and those after it are dropped. order="best_last" puts the best
    nearest to what follows; the numbers stay the ranks. `count` measures text in tokens and is
    needed with `max_tokens`.
    """
    if order not in {"best_first", "best_last"}:
        raise CompileError(f"order={order!r} is not known", hint="use best_first or best_last")
    blocks = []
    left = max_tokens
    for rank, doc in enumerate(docs, 1):
        block = _block(doc, rank, cite)
        if left is not None:
            assert count is not None
            block = _fit(block, left, count)
            if not block:
                break
            left -= count(block + "\n\n")
        blocks.append(block)
        if left is not None and left <= 0:
            break
    if order == "best_last":
        blocks.reverse()
    return "\n\n".join(blocks)


def _block(doc: Hit, rank: int, cite: bool) -> str:
    title = f"{doc.title}\n" if doc.title else ""
    return f"[{rank}] {title}{doc.text}" if cite else f"{title}{doc.text}"


def _fit(block: str, limit: int, count: Callable[[str], int]) -> str:
    """The longest run of whole words of `block` within `limit` tokens; "" if none is."""
    if count(block) <= limit:
        return block
    ends = [i for i, char in enumerate(block) if char.isspace()]
    low, high = 0, len(ends)
    while low < high:  # the first end that is too long is at `low` afterwards
        middle = (low + high) // 2
        if count(block[: ends[middle]].rstrip()) <= limit:
            low = middle + 1
        else:
            high = middle
    kept = block[: ends[low - 1]].rstrip() if low else ""
    # A number alone is no passage.
    return kept if " " in kept or "\n" in kept else ""
