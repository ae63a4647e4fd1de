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

from phloem.runtime.model.batch import ForwardBatch

__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]


@dataclass(slots=True)
class _Group:
    """Sequences with the same number of rows, attended to in one call.

    `rows` [seqs * n] are their rows in the batch, sequence by sequence (None: all rows in
    order). `mask` [seqs, 1, n, keys] is True where a row sees a key; None means it sees all.
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


def plan_attention(batch: ForwardBatch, page_size: int, window: int | None = None) -> AttentionPlan:
    """Group the batch's sequences: all decode rows together, each longer chunk alone."""
    starts = batch.query_starts
    lengths = [end - start for start, end in pairwise(starts)]
    decode = [seq for seq, length in enumerate(lengths) if length == 1]
    members = [decode] if decode else []
    members += [[seq] for seq, length in enumerate(lengths) if length > 1]
    groups = [_group(batch, seqs, lengths[seqs[0]], page_size, window) for seqs in members]
    return AttentionPlan(batch.slots, groups)


def _group(
    batch: ForwardBatch, seqs: list[int], n: int, page_size: int, window: int | None
) -> _Group:
    device = batch.tokens.device
    keys = max(batch.context_lens[seq] for seq in seqs)
    used = -(-keys // page_size)
    rows = None
    if len(seqs) * n < batch.query_starts[-1]:
        firsts = torch.tensor([batch.query_starts[seq] for seq in seqs], device=device)
        rows = (firsts[:, None] + torch.arange(n, device=device)).flatten()
    pages = batch.pages[:, :used]
    if len(seqs) < batch.pages.shape[0]:
        pages = pages[torch.tensor(seqs, device=device)]
    sees_all = n == 1 and all(batch.context_lens[seq] == keys for seq in seqs)
    if sees_all and (window is None or keys <= window):
        return _Group(len(seqs), rows, pages, keys, None)
    positions = batch.positions if rows is None else batch.positions[rows]
    positions = positions.view(len(seqs), 1, n, 1)
    columns = torch.arange(keys, device=device)
    mask = columns <= positions
    if window is not None:
        mask &= columns > positions - window
    return _Group(len(seqs), rows, pages, keys, mask)


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
    mask = group.mask
    if mask is not None and n > 1:
        mask = mask.repeat(1, 1, share, 1)
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    out = out.view(seqs, kv_heads, share, n, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(seqs * n, -1)


def _gather(pool: torch.Tensor, group: _Group) -> torch.Tensor:
    """The group's pages in sequence order: [seqs, kv_heads, keys, head_dim]."""
    # index_select copies whole pages; pool[pages] is up to ten times slower on a CPU.
    flat = pool.index_select(0, group.pages.flatten())
    flat = flat.view(group.seqs, -1, *pool.shape[2:])
    return flat[:, : group.keys].transpose(1, 2)
