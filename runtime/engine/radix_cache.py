"""The prefix cache: a tree over the tokens of every sequence whose KV is still there.

What lives here: `Node`, `Interest`, `Match` and `RadixCache` with its eviction. What does not: how
a running sequence uses it (`sequence_kv.py`) and the counting of pages (`kv_pool.py`).

A node is one page: an edge of 1 to `page_size` tokens. Only a full page has children, so a page
always holds the tokens of one aligned block of positions and is never split. Siblings may share
their first tokens (they diverge inside the page); a match takes the sibling with the longest
common prefix and its user copies that part of the page: sharing is exact to the token whatever
the page size. Children are kept sorted by their tokens, because the sibling with the longest
common prefix is then a neighbour of where the tokens sought would stand.

A page with a holder is locked. Whoever holds a page holds all pages above it too, so unlocked
nodes are closed downwards and eviction takes unlocked leaves. A session that waits locks
nothing; it leaves an `Interest` at the last page of its tokens, which moves up as pages are
evicted. The leaf that is worth least goes first: its cost to recompute times the chance that it
is used again, as the interests tell it. Pages in which nobody has an interest are worth
nothing; of equal worth, the least recently used goes first.
(A radix tree of token blocks, after the prefix caches of SGLang, Zheng et al. 2024, and vLLM.)
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.tokens import common_prefix

__all__ = ["Interest", "Match", "Node", "RadixCache"]

Tokens = tuple[int, ...]

_LONG = 4096
"""Position at which a row costs about twice as much as at the start, because of attention."""


class Interest:
    """What is known of the next use that a session has for its KV.

    `next_use` is the number of steps until then (None: not known, or never), `queued` is set while
    a step of the session waits already. `node` is where the session's tokens end in the cache.
    """

    __slots__ = ("next_use", "node", "queued")

    def __init__(self) -> None:
        self.next_use: int | None = None
        self.queued = False
        self.node: Node | None = None

    @property
    def chance(self) -> float:
        """From 0 to 1, falling with the steps in between: in each one a run may end."""
        if self.queued:
            return 1.0
        return 0.0 if self.next_use is None else 1.0 / (1 + self.next_use)


class Node:
    """One cached page, whose first token stands at position `start`.

    `writer` is True while a sequence appends to the page in place.
    """

    __slots__ = (
        "children", "interests", "keys", "last_use", "page", "parent", "start", "tokens", "writer",
    )  # fmt: skip

    def __init__(self, parent: Node | None, tokens: Tokens, page: int, start: int = 0) -> None:
        self.parent = parent
        self.start = start
        self.interests: list[Interest] = []
        self.tokens = tokens
        self.page = page
        self.keys: list[Tokens] = []
        self.children: list[Node] = []
        self.last_use = 0
        self.writer = False

    def child(self, tokens: Tokens) -> Node | None:
        """The child with exactly these tokens."""
        at = bisect_left(self.keys, tokens)
        return self.children[at] if self.keys[at : at + 1] == [tokens] else None

    def closest(self, tokens: Tokens) -> tuple[Node | None, int]:
        """The child that shares most tokens with `tokens`, and how many; (None, 0) if none.

        Of equals, the one that ends there: its page can be continued without a copy.
        """
        at = bisect_left(self.keys, tokens)
        best, shared = None, 0
        for i in range(max(at - 1, 0), min(at + 1, len(self.keys))):
            length = common_prefix(self.keys[i], tokens)
            if length > shared:
                best, shared = self.children[i], length
        if best is not None and len(best.tokens) > shared:
            best = self.child(tokens[:shared]) or best
        return best, shared

    def insert(self, node: Node) -> None:
        """Add a child in its place in the order."""
        at = bisect_left(self.keys, node.tokens)
        self.keys.insert(at, node.tokens)
        self.children.insert(at, node)

    def remove(self, node: Node) -> None:
        """Take a child out."""
        at = bisect_left(self.keys, node.tokens)
        del self.keys[at], self.children[at]


@dataclass(slots=True)
class Match:
    """The longest cached prefix: `full` pages from the root, then `tail` tokens of `partial`."""

    root: Node
    full: list[Node]
    partial: Node | None
    tail: int


class RadixCache:
    """The trees of all namespaces over one pool. Not thread-safe.

    With `hints` off the interests count for nothing: the least recently used page goes first.
    """

    def __init__(self, pool: KVPool, *, hints: bool = True) -> None:
        self.pool = pool
        self._hints = hints
        self.evicted = 0
        """Pages evicted since the start."""
        self._roots: dict[str, Node] = {}
        self._clock = itertools.count(1)
        self._order = itertools.count()
        # Candidates for eviction, checked again when popped: (rank, tie-break, node).
        self._heap: list[tuple[tuple[float, int], int, Node]] = []

    def match(self, namespace: str, tokens: Sequence[int], limit: int) -> Match:
        """The longest cached prefix of `tokens[:limit]` in `namespace`."""
        size = self.pool.page_size
        root = node = self._roots.setdefault(namespace, Node(None, (), -1))
        full: list[Node] = []
        at = 0
        while True:
            block = tuple(tokens[at : min(at + size, limit)])
            child, shared = node.closest(block) if block else (None, 0)
            if child is None or shared < size:
                return Match(root, full, child, shared)
            full.append(child)
            node, at = child, at + size

    def add(self, parent: Node, tokens: Tokens, page: int) -> Node:
        """Cache a page that the caller holds, below `parent`, which has no such child."""
        above = self.pool.page_size if parent.parent is not None else 0
        node = Node(parent, tokens, page, parent.start + above)
        parent.insert(node)
        self.pool.enter_cache(page)
        return node

    def extend(self, node: Node, tokens: Tokens) -> None:
        """The page of `node` now holds `tokens`, which begin with the node's."""
        assert node.parent is not None
        node.parent.remove(node)
        node.tokens = tokens
        node.parent.insert(node)

    def drop(self, node: Node) -> None:
        """Forget a leaf; its page is free unless somebody holds it."""
        parent = node.parent
        assert parent is not None
        parent.remove(node)
        node.parent = None
        for interest in node.interests:
            interest.node = parent if parent.parent is not None else None
        if parent.parent is not None:
            parent.interests += node.interests
        node.interests = []
        self.pool.leave_cache(node.page)
        self.offer(parent)

    def touch(self, node: Node, *, cold: bool = False) -> None:
        """Note a use of `node` and all above it. `cold`: the first to go, unless used again."""
        now = 0 if cold else next(self._clock)
        current: Node | None = node
        while current is not None:
            current.last_use = max(current.last_use, now)
            current = current.parent
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Consider `node` for eviction, if it is an unlocked leaf."""
        if self._evictable(node):
            heapq.heappush(self._heap, (self._rank(node), next(self._order), node))

    def settle(self, interest: Interest, node: Node | None) -> None:
        """The tokens of the interest's session end at `node` now (None, or a root: nowhere)."""
        before, interest.node = interest.node, None
        if before is not None:
            before.interests.remove(interest)
            self.offer(before)
        if node is not None and node.parent is not None:
            interest.node = node
            node.interests.append(interest)
            self.offer(node)

    def expect(self, interest: Interest, next_use: int | None) -> None:
        """Change what is known of the next use."""
        interest.next_use = next_use
        self.settle(interest, interest.node if next_use is not None else None)

    def _rank(self, node: Node) -> tuple[float, int]:
        """Which leaf is evicted first: the worth of its page, then the last use."""
        if not self._hints or not node.interests:
            return 0.0, node.last_use
        cost = len(node.tokens) * (1 + node.start / _LONG)
        return cost * max(interest.chance for interest in node.interests), node.last_use

    def take_page(self) -> int | None:
        """A free page, evicting if there is none; None if every page is locked."""
        page = self.pool.take()
        if page is None and self.evict(1):
            page = self.pool.take()
        return page

    def evict(self, pages: int) -> int:
        """Evict up to `pages` unlocked leaves, those worth least first; returns how many."""
        done = 0
        while done < pages and self._heap:
            rank, _, node = heapq.heappop(self._heap)
            if self._evictable(node) and rank == self._rank(node):
                self.drop(node)
                done += 1
        self.evicted += done
        return done

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Every node with its namespace, parents first (for the audit)."""
        for namespace, root in self._roots.items():
            stack = list(root.children)
            while stack:
                node = stack.pop()
                yield namespace, node
                stack.extend(node.children)

    def _evictable(self, node: Node) -> bool:
        return node.parent is not None and not node.children and not self.pool.holders[node.page]
