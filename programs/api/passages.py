"""Retrieved documents as prompt text.

What lives here: `Passages` and `render`, pure text. What does not: counting tokens, which needs an
engine (`primitives.passages` passes the counter in), and citations of them (`citations.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from phloem.errors import CompileError
from phloem.retrieval.base import Hit, sentence_spans

__all__ = ["Order", "Passages", "render"]

Order = Literal["score", "reverse", "stable"]
Count: TypeAlias = Callable[[str], int]
GAP = "\n\n"


class Passages(str):
    """The text of passages: `sources[n - 1]` is the hit that it numbers [n]."""

    __slots__ = ("sources",)
    sources: tuple[Hit, ...]

    def __new__(cls, text: str, sources: tuple[Hit, ...]) -> Passages:
        """`text`, made of `sources`."""
        made = super().__new__(cls, text)
        made.sources = sources
        return made

    def __getnewargs__(self) -> tuple[str, tuple[Hit, ...]]:  # type: ignore[override] # of copies
        return str(self), self.sources


def render(
    docs: Sequence[Hit],
    *,
    max_tokens: int | None = None,
    order: Order = "score",
    cite: bool = True,
    count: Count | None = None,
) -> Passages:
    """The passages as text, numbered from [1] with `cite`, parted by blank lines.

    "score" has the best first; within `max_tokens` a passage that does not fit whole is cut at the
    end of a sentence, and those after it are left out. "reverse" is the same with the best nearest
    to what follows; the numbers stay the ranks. "stable" goes by document id, whatever the scores:
    the same documents are always the same text, which the engine has then computed already. Within
    `max_tokens` all of them are kept and the longest are cut; only if not even a sentence of each
    fits are the worst left out.

    `count` measures text in tokens and is needed with `max_tokens`.
    """
    if order not in {"score", "reverse", "stable"}:
        raise CompileError(f"order={order!r} is not known", hint='"score", "reverse" or "stable"')
    if not all(isinstance(doc, Hit) for doc in docs):
        raise CompileError(
            "passages() takes the hits of a retrieval, not texts",
            hint="docs = retrieve(...); or make them: Hit(id, text, score)",
        )
    hits = list({doc.id: doc for doc in docs}.values()) if order == "stable" else list(docs)
    if order == "stable":
        hits.sort(key=lambda hit: hit.id)
    if max_tokens is None:
        blocks = [_block(hit, number, cite) for number, hit in enumerate(hits, 1)]
    else:
        assert count is not None
        fit = _fit_evenly if order == "stable" else _fit_in_order
        hits, blocks = fit(hits, max_tokens, cite, count)
    if order == "reverse":
        blocks.reverse()
    return Passages(GAP.join(blocks), tuple(hits))


def _block(hit: Hit, number: int, cite: bool) -> str:
    title = f"{hit.title}\n" if hit.title else ""
    return f"[{number}] {title}{hit.text}" if cite else f"{title}{hit.text}"


def _fit_in_order(
    hits: list[Hit], limit: int, cite: bool, count: Count
) -> tuple[list[Hit], list[str]]:
    """As many passages as fit, from the first; of the last one as many sentences as fit."""
    blocks: list[str] = []
    left = limit
    for number, hit in enumerate(hits, 1):
        block = _block(hit, number, cite)
        kept = _cut(block, left, _ends(hit, block), count)
        if not kept and not blocks:
            # A text without an end of a sentence is better than nothing.
            kept = _cut(block, left, _word_ends(hit, block), count)
        if kept:
            blocks.append(kept)
            left -= count(kept + GAP)
        if kept != block or left <= 0:
            break
    return hits[: len(blocks)], blocks


def _fit_evenly(
    hits: list[Hit], limit: int, cite: bool, count: Count
) -> tuple[list[Hit], list[str]]:
    """All passages, each cut to the same share of the limit; short ones leave theirs to others."""
    while len(hits) > 1:
        choices = []
        for number, hit in enumerate(hits, 1):
            block = _block(hit, number, cite)
            texts = [block[:end] for end in _ends(hit, block)] or [block]
            choices.append([(count(text), text) for text in texts])
        # The largest share with which everything fits, by bisection; 0 if there is none.
        low, high = 0, max(limit, 0)
        while low < high:
            share = (low + high + 1) // 2
            if count(GAP.join(_within(share, choices))) <= limit:
                low = share
            else:
                high = share - 1
        if all(blocks := _within(low, choices)):
            return hits, blocks
        worst = min(hits, key=lambda hit: (hit.score, hit.id))
        hits = [hit for hit in hits if hit is not worst]
    return _fit_in_order(hits, limit, cite, count)


def _within(share: int, choices: Sequence[Sequence[tuple[int, str]]]) -> list[str]:
    """Of each passage the longest text of at most `share` tokens; "" if there is none."""
    fitting = [[text for tokens, text in texts if tokens <= share] for texts in choices]
    return [texts[-1] if texts else "" for texts in fitting]


def _ends(hit: Hit, block: str) -> list[int]:
    """Where the sentences of the passage end in `block`, in characters."""
    before = len(block) - len(hit.text)
    return [before + end for _, end in sentence_spans(hit.text, 0, len(hit.text))]


def _word_ends(hit: Hit, block: str) -> list[int]:
    before = len(block) - len(hit.text)
    return [at for at in range(before + 1, len(block)) if block[at].isspace()]


def _cut(block: str, limit: int, ends: Sequence[int], count: Count) -> str:
    """The longest beginning of `block` up to one of `ends` within `limit` tokens, or ""."""
    if count(block) <= limit:
        return block
    low, high = 0, len(ends)
    while low < high:  # the first end that is too far is at `low` afterwards
        middle = (low + high) // 2
        if count(block[: ends[middle]]) <= limit:
            low = middle + 1
        else:
            high = middle
    return block[: ends[low - 1]] if low else ""
