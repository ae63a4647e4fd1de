"""Paged attention against a loop over single rows, and batches against sequences alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.runtime.model.attention import paged_attention, plan_attention
from phloem.runtime.model.batch import ForwardBatch, KVStorage


def reference(query, keys, values, position, window):
    """Softmax attention of one row, head by head; `keys` [tokens, kv_heads, head_dim]."""
    share = query.shape[0] // keys.shape[1]
    first = 0 if window is None else max(0, position + 1 - window)
    out = []
    for head in range(query.shape[0]):
        seen = keys[first : position + 1, head // share]
        weights = torch.softmax(seen @ query[head] / math.sqrt(query.shape[1]), dim=0)
        out.append(weights @ values[first : position + 1, head // share])
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    "sequences",  # (tokens cached before, rows) of each
    [
        [(0, 7)],
        [(13, 1)],
        [(9, 6)],
        [(3, 1), (12, 1), (8, 1)],
        [(7, 1), (7, 1)],
        [(0, 5), (11, 1), (4, 3), (2, 1), (0, 1)],
    ],
)
def test_every_row_attends_to_its_own_prefix_only(sequences, window):
    """Prefill chunks and decode rows in one batch equal attention computed row by row."""
    torch.manual_seed(0)
    heads, kv_heads, head_dim, page_size = 6, 2, 8, 4
    totals = [cached + rows for cached, rows in sequences]
    keys = [torch.randn(total, kv_heads, head_dim) for total in totals]
    values = [torch.randn(total, kv_heads, head_dim) for total in totals]
    key_pages = torch.full((40, page_size, kv_heads, head_dim), 1e4)
    value_pages = torch.full_like(key_pages, 1e4)
    order = iter(torch.randperm(40).tolist())
    tables = [[next(order) for _ in range(-(-total // page_size))] for total in totals]
    slots = [
        [table[at // page_size] * page_size + at % page_size for at in range(total)]
        for table, total in zip(tables, totals, strict=True)
    ]
    for own, k, v in zip(slots, keys, values, strict=True):
        key_pages.view(-1, kv_heads, head_dim)[own] = k
        value_pages.view(-1, kv_heads, head_dim)[own] = v
    positions = [range(cached, cached + rows) for cached, rows in sequences]
    starts = [0]
    for _, rows in sequences:
        starts.append(starts[-1] + rows)
    width = max(map(len, tables))
    batch = ForwardBatch(
        tokens=torch.zeros(starts[-1], dtype=torch.long),
        positions=torch.tensor([p for own in positions for p in own]),
        slots=torch.tensor([own[p] for own, at in zip(slots, positions, strict=True) for p in at]),
        query_starts=starts,
        context_lens=totals,
        pages=torch.tensor([t + [0] * (width - len(t)) for t in tables]),
        logit_rows=torch.tensor([0]),
    )
    query = torch.randn(starts[-1], heads, head_dim)
    new_keys = torch.cat([k[at.start :] for k, at in zip(keys, positions, strict=True)])
    new_values = torch.cat([v[at.start :] for v, at in zip(values, positions, strict=True)])
    plan = plan_attention(
        batch, KVStorage([key_pages], [value_pages], page_size), heads // kv_heads, window
    )
    out = paged_attention(query, new_keys, new_values, key_pages, value_pages, plan)
    rows = iter(query)
    expected = [
        reference(next(rows), keys[i], values[i], p, window)
        for i, own in enumerate(positions)
        for p in own
    ]
    torch.testing.assert_close(out, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_new_keys_and_values_go_to_their_slots_and_nowhere_else():
    """A pass writes exactly the slots it was given."""
    pool = torch.zeros(3, 4, 1, 8)
    values = torch.zeros(3, 4, 1, 8)
    batch = ForwardBatch(
        tokens=torch.zeros(2, dtype=torch.long),
        positions=torch.tensor([0, 1]),
        slots=torch.tensor([8, 9]),
        query_starts=[0, 2],
        context_lens=[2],
        pages=torch.tensor([[2]]),
        logit_rows=torch.tensor([1]),
    )
    key = torch.ones(2, 1, 8)
    plan = plan_attention(batch, KVStorage([pool], [values], 4), 2)
    paged_attention(torch.ones(2, 2, 8), key, 2 * key, pool, values, plan)
    assert pool.view(12, 8).sum(1).tolist() == [0.0] * 8 + [8.0, 8.0, 0.0, 0.0]
    assert values.view(12, 8).sum(1).tolist() == [0.0] * 8 + [16.0, 16.0, 0.0, 0.0]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_chunks_and_batches_change_no_logits(tiny, pages, data):
    """However sequences are cut into chunks and batched, each row's logits are the same."""
    count = data.draw(st.integers(1, 4))
    token = st.integers(0, tiny.decoder.vocab_size - 1)
    texts = {str(i): data.draw(st.lists(token, min_size=1, max_size=24)) for i in range(count)}
    alone = {name: pages(tiny.decoder).logits(ids) for name, ids in texts.items()}
    runner = pages(tiny.decoder, page_size=data.draw(st.sampled_from([1, 3, 16])))
    left = dict(texts)
    got = {name: [] for name in texts}
    while left:
        names = data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True))
        chunk = {n: left[n][: data.draw(st.integers(1, len(left[n])))] for n in names}
        for name, logits in runner.forward(chunk).items():
            got[name].append(logits)
        left = {n: ids[len(chunk.get(n, [])) :] for n, ids in left.items()}
        left = {n: ids for n, ids in left.items() if ids}
    for name, logits in got.items():
        torch.testing.assert_close(torch.cat(logits), alone[name], atol=2e-4, rtol=1e-4)


def test_later_tokens_never_reach_earlier_rows(tiny, pages):
    """Changing a token changes no logits before it, and all from it on."""
    ids = list(range(10, 30))
    other = [*ids[:12], 99, *ids[13:]]
    a, b = pages(tiny.decoder).logits(ids), pages(tiny.decoder).logits(other)
    torch.testing.assert_close(a[:12], b[:12])
    assert ((a[12:] - b[12:]).abs().amax(1) > 1e-2).all()
