"""Pages and their owners."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.model.batch import KVStorage


def storage(pages, size):
    return KVStorage([torch.zeros(pages, size, 1, 2)], [torch.zeros(pages, size, 1, 2)], size)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "hold", "release", "cache", "uncache"]), st.integers(0, 9)
        )
    )
)
def test_every_page_is_free_cached_or_used(actions):
    """Whatever happens to pages, free + cached + used is the size of the pool."""
    pool = KVPool(storage(4, 2), 4)
    for action, which in actions:
        owned = [p for p in range(4) if pool.holders[p] or pool.in_cache[p]]
        page = owned[which % len(owned)] if owned else None
        if action == "take":
            taken = pool.take()
            assert (taken is None) == (len(owned) == 4)
        elif page is None:
            continue
        elif action == "hold":
            pool.hold(page)
        elif action == "release" and pool.holders[page]:
            pool.release(page)
        elif action == "cache" and pool.holders[page]:
            pool.enter_cache(page)
        elif action == "uncache" and pool.in_cache[page]:
            pool.leave_cache(page)
        used = sum(h > 0 for h in pool.holders)
        cached = sum(bool(c) and not h for c, h in zip(pool.in_cache, pool.holders, strict=True))
        assert (pool.used, pool.cached) == (used, cached)
        assert pool.free + pool.cached + pool.used == 4


def test_copy_takes_the_first_tokens_of_a_page_only():
    """Copying three tokens of a page leaves the rest of the target as it was."""
    pool = KVPool(storage(2, 4), 2)
    pool.storage.keys[0][0] = 1.0
    pool.storage.values[0][0] = 2.0
    pool.copy(0, 1, 3)
    assert pool.storage.keys[0][1, :, 0, 0].tolist() == [1, 1, 1, 0]
    assert pool.storage.values[0][1, :, 0, 1].tolist() == [2, 2, 2, 0]
