"""The invariants of the KV pool, checked from scratch.

What lives here: `audit`. It trusts no counter: it walks the trees and the sequences and compares.
"""

from __future__ import annotations

from collections import Counter

from phloem.runtime.engine.state import EngineState

__all__ = ["audit"]


def audit(state: EngineState) -> None:
    """Raises `AssertionError`, naming the breach, unless

    * free + cached + used = pages, each counted anew;
    * every holder of a page is a running sequence or a pin, and every cached page one node;
    * only full pages have children, children are in order, and no two have equal tokens;
    * a sequence's published pages are the nodes of its tokens;
    * every interest stands at the node that it names;
    * a node is written in place by exactly one sequence, or by none.
    """
    size = state.pool.page_size
    sequences = [seq for job in state.running for seq in job.sequences()]
    for job in state.waiting:
        assert not any(seq.pages for seq in job.sequences()), "a waiting job holds pages"
    held = Counter(page for seq in sequences for page in seq.pages)
    held.update(page for seq in state.pins.sequences() for page in seq.pages)
    holders = {page: n for page, n in enumerate(state.pool.holders) if n}
    assert holders == dict(held), f"holders {holders}, counted {dict(held)}"

    nodes = [node for _, node in state.cache.nodes()]
    cached = [node.page for node in nodes]
    marked = {page for page, mark in enumerate(state.pool.in_cache) if mark}
    assert len(set(cached)) == len(cached), "a page has two nodes"
    assert set(cached) == marked, "pages marked as cached are not those in the trees"
    for node in nodes:
        assert 0 < len(node.tokens) <= size, "an edge of a wrong length"
        assert not node.children or len(node.tokens) == size, "a partial page has children"
        assert node.keys == [child.tokens for child in node.children], "keys and children differ"
        assert node.keys == sorted(set(node.keys)), "children out of order, or twice"
        assert all(i.node is node for i in node.interests), "an interest at a wrong node"
        assert all(child.parent is node for child in node.children), "a wrong parent"

    free = state.pool.free_pages()
    assert len(free) == state.pool.free, "a free page is listed twice"
    assert not free & (set(held) | set(cached)), "a free page has an owner"
    only_cached = set(cached) - set(held)
    assert state.pool.cached == len(only_cached), "the count of cached pages is wrong"
    assert state.pool.used == len(held), "the count of used pages is wrong"
    assert free | set(held) | set(cached) == set(range(state.pool.pages)), "a page is lost"

    writers = [seq.tail for seq in [*sequences, *state.pins.sequences()] if seq.tail]
    assert len({id(node) for node in writers}) == len(writers), "a node has two writers"
    assert {id(n) for n in writers} == {id(n) for n in nodes if n.writer}, "wrong writers"
    for seq in sequences:
        assert seq.computed <= len(seq.pages) * size, "computed tokens without a page"
        above = seq.node
        for at in range(seq.published - 1, -1, -1):
            assert above is not None, "published pages above the root"
            assert above.page == seq.pages[at], "a published page is another node's"
            block = tuple(seq.tokens[at * size : (at + 1) * size])
            assert above.tokens == block, "a published page holds other tokens"
            above = above.parent
