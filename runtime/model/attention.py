"""Attention over a paged KV pool, for batches that mix prefill chunks and decode rows.

What lives here: `AttentionPlan` (everything about a batch that all layers share: which pages
to gather, who sees whom) and `paged_attention`. What does not: projections and rotation
(`llama.py`), and which page belongs to whom (`engine/kv_pool.py`).

Query heads that share a KV head are folded into the query length: a group of g heads asks
g * n questions of one KV head. On a CPU this is several times faster than repeating K and V
or `enable_gqa` (docs/performance.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from phloem.runtime.model.batch import ForwardBatch, KVStorage

__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]


@dataclass(slots=True)
class _Group:
    """Sequences with the same number of rows, attended to in one call.

    `rows` [seqs * n] are their rows in the batch, sequence by sequence (None: all rows in
    order). `mask` is added to the scores of [seqs, kv_heads, share * n, keys]: 0 where a row
    sees a key, else -inf; None means that all rows see all keys.
    """

    seqs: int
    rows: torch.Tensor | None
    pages: torch.Tensor
    keys: int
    mask: torch.Tensor | None


@dataclass(slots=True)
class AttentionPlan:
    """How one batch attends; made once per forward pass, used by every layer."""

    slots: torch.Tensor
    groups: list[_Group]


def plan_attention(
    batch: ForwardBatch, kv: KVStorage, share: int, window: int | None = None
) -> AttentionPlan:
    """Group the batch's sequences: all decode rows together, each longer chunk alone.

    `share` query heads use one KV head; a row sees at most `window` tokens (None: all).
    """
    lengths = [end - start for start, end in pairwise(batch.query_starts)]
    decode = [seq for seq, length in enumerate(lengths) if length == 1]
    members = [decode] if decode else []
    members += [[seq] for seq, length in enumerate(lengths) if length > 1]
    groups = []
    for seqs in members:
        n = lengths[seqs[0]]
        rows = _rows(batch, seqs, n)
        keys = max(batch.context_lens[seq] for seq in seqs)
        pages = batch.pages[:, : -(-keys // kv.page_size)]
        if len(seqs) < len(lengths):
            pages = pages[torch.tensor(seqs, device=pages.device)]
        visible = _visible(batch, seqs, rows, keys, window)
        mask = None
        if visible is not None:
            hidden = ~visible.repeat(1, 1, share if n > 1 else 1, 1)
            mask = torch.zeros_like(hidden, dtype=kv.keys[0].dtype)
            mask.masked_fill_(hidden, float("-inf"))
        groups.append(_Group(len(seqs), rows, pages, keys, mask))
    return AttentionPlan(batch.slots, groups)


def _rows(batch: ForwardBatch, seqs: list[int], n: int) -> torch.Tensor | None:
    """The rows of `seqs`, `n` each; None if that is the whole batch."""
    if len(seqs) * n == batch.query_starts[-1]:
        return None
    device = batch.tokens.device
    firsts = torch.tensor([batch.query_starts[seq] for seq in seqs], device=device)
    return (firsts[:, None] + torch.arange(n, device=device)).flatten()


def _visible(
    batch: ForwardBatch, seqs: list[int], rows: torch.Tensor | None, keys: int, window: int | None
) -> torch.Tensor | None:
    """Who sees whom, bool [seqs, 1, n, keys]; None if every row sees all `keys`."""
    positions = batch.positions if rows is None else batch.positions[rows]
    one_row_each = len(positions) == len(seqs)
    same_length = all(batch.context_lens[seq] == keys for seq in seqs)
    if one_row_each and same_length and (window is None or keys <= window):
        return None
    positions = positions.view(len(seqs), 1, -1, 1)
    columns = torch.arange(keys, device=positions.device)
    visible = columns <= positions
    if window is not None:
        visible &= columns > positions - window
    return visible


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    plan: AttentionPlan,
) -> torch.Tensor:
    """Store the rows' keys and values, then attend.

    `query` [rows, heads, head_dim], `key` and `value` [rows, kv_heads, head_dim], the pools
    [pages, page_size, kv_heads, head_dim]. Returns [rows, heads * head_dim].
    """
    rows, heads, head_dim = query.shape
    key_pages.view(-1, *key.shape[1:]).index_copy_(0, plan.slots, key)
    value_pages.view(-1, *value.shape[1:]).index_copy_(0, plan.slots, value)
    if len(plan.groups) == 1 and plan.groups[0].rows is None:
        return _attend(query, key_pages, value_pages, plan.groups[0])
    out = query.new_empty(rows, heads * head_dim)
    for group in plan.groups:
        out[group.rows] = _attend(query[group.rows], key_pages, value_pages, group)
    return out


def _attend(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, group: _Group
) -> torch.Tensor:
    """One SDPA call. `query` [seqs * n, heads, head_dim] -> [seqs * n, heads * head_dim]."""
    seqs, kv_heads, head_dim = group.seqs, key_pages.shape[2], query.shape[2]
    share = query.shape[1] // kv_heads
    n = query.shape[0] // seqs
    folded = query.view(seqs, n, kv_heads, share, head_dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(seqs, kv_heads, share * n, head_dim)
    keys = _gather(key_pages, group)
    values = _gather(value_pages, group)
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
    out = out.view(seqs, kv_heads, share, n, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(seqs * n, -1)


def _gather(pool: torch.Tensor, group: _Group) -> torch.Tensor:
    """The group's pages in sequence order: [seqs, kv_heads, keys, head_dim]."""
    # index_select copies whole pages; pool[pages] is up to ten times slower on a CPU.
    flat = pool.index_select(0, group.pages.flatten())
    flat = flat.view(group.seqs, -1, *pool.shape[2:])
    return flat[:, : group.keys].transpose(1, 2)
