"""The invariants of the KV pool, checked from scratch.

What lives here: `audit`. It trusts no counter: it walks the trees and the sequences and compares.
"""

from __future__ import annotations

from collections import Counter

from phloem.runtime.engine.radix_tree import Node
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState

__all__ = ["audit"]


def audit(state: EngineState) -> None:
    """Raises `AssertionError`, naming the breach, unless

    * free + cached + used = pages, each counted anew, and so on the host;
    * every node is on the device or on the host, and below one on the host all are;
    * whatever could be given up stands in the order of eviction;
    * every holder of a page is a running sequence or a pin, and every cached page one node;
    * only full pages have children, children are in order, and no two have equal tokens;
    * a sequence's published pages are the nodes of its tokens, below the root of its namespace;
    * a root has pages, or a sequence stands there;
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
    cached = [node.page for node in nodes if node.on_device]
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
        on_device = sum(child.on_device for child in node.children)
        assert node.resident == on_device, "the count of children on the device is wrong"
        assert node.on_device or not on_device, "a page on the device below one on the host"
    _audit_host(state, nodes)
    assert not state.cache.stranded(), "an unlocked leaf would never be evicted"

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
    _audit_roots(state, [*sequences, *state.pins.sequences()])
    for seq in sequences:
        assert seq.computed <= len(seq.pages) * size, "computed tokens without a page"
        above = seq.node
        for at in range(seq.published - 1, -1, -1):
            assert above is not None, "published pages above the root"
            assert above.page == seq.pages[at], "a published page is another node's"
            block = tuple(seq.tokens[at * size : (at + 1) * size])
            assert above.tokens == block, "a published page holds other tokens"
            above = above.parent


def _audit_roots(state: EngineState, sequences: list[Sequence]) -> None:
    """No namespace is remembered for nothing, and none is split in two."""
    roots = state.cache.roots()
    standing = [(seq.namespace, seq.node) for seq in sequences if seq.node is not None]
    for namespace, node in [*standing, *state.cache.nodes()]:
        top = node
        while top.parent is not None:
            top = top.parent
        assert top is roots.get(namespace), "a node is not below the root of its namespace"
    used = {namespace for namespace, _ in standing}
    used |= {namespace for namespace, _ in state.cache.nodes()}
    assert set(roots) == used, "a root without pages that nobody stands at"


def _audit_host(state: EngineState, nodes: list[Node]) -> None:
    """Every page of the host is free or has one node, which is nowhere else."""
    away = [node.host for node in nodes if not node.on_device]
    assert all(node.host == -1 for node in nodes if node.on_device), "a node on both tiers"
    tier = state.cache.tier
    if tier is None:
        assert not away, "a node on the host, and there is none"
        return
    free = tier.free_pages()
    assert len(free) == tier.free, "a free host page is listed twice"
    assert len(set(away)) == len(away), "a host page has two nodes"
    assert not free & set(away), "a free host page has a node"
    assert free | set(away) == set(range(tier.pages)), "a host page is lost"
