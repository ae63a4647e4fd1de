"""The prefix cache: a tree over the tokens of every sequence whose KV is still there.

What lives here: `RadixCache`: what enters, what is given up, and what comes back from the host.
What does not: the nodes (`radix_tree.py`), when KV is used next (`forecast.py`), how a running
sequence uses the cache (`sequence_kv.py`) and the counting of pages (`kv_pool.py`).

A page with a holder is locked. Whoever holds a page holds all pages above it too, so unlocked
nodes are closed downwards and eviction takes unlocked leaves. A session that waits locks
nothing; it leaves an `Interest` at the last page of its tokens, which moves up as pages are
evicted. The leaf that is worth least goes first: the one with the longest time until its next
use, over the chance that this comes and the page's cost to recompute. Of leaves that nothing
speaks for, the least recently used goes first. What speaks for a leaf are the sessions that stand
there, by what their program hints and by what was learned at their place in it, and the new
sessions that came by so far without going on from one that stood there.
(A radix tree of token blocks, after the prefix caches of SGLang, Zheng et al. 2024, and vLLM;
eviction by Belady's rule, 1966, on expected times.)

With a host tier, what the device gives up goes there and stays in the tree. A node is on one of
the two; below a node on the host all are. From the host the same order takes leaves.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

from phloem.runtime.engine.eviction import EvictionOrder
from phloem.runtime.engine.forecast import Forecast, Interest
from phloem.runtime.engine.host_tier import HostTier
from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.radix_tree import Match, Node, Rank, Root, Tokens

__all__ = ["RadixCache"]

_REMEMBERED = 16
"""Pages given up that are remembered, in pools."""

_LONG = 4096
"""Position at which a row costs about twice as much as at the start, because of attention."""


class RadixCache:
    """The trees of all namespaces over one pool. Not thread-safe.

    With `hints` off nothing that is known of sessions counts: the least recently used page goes
    first. `clock` gives seconds.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        hints: bool = True,
        tier: HostTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.tier = tier
        self.forecast = Forecast(clock, _REMEMBERED * pool.pages)
        self.evicted = 0
        """Pages that the device has given up since the start."""
        self._hints = hints
        # Those that have pages, and all: one without pages is forgotten with the last sequence
        # that stands there, so that tenants who left take no memory.
        self._roots: dict[str, Root] = {}
        self._known: WeakValueDictionary[str, Root] = WeakValueDictionary()
        self._uses = itertools.count(1)
        self._order = EvictionOrder(self._evictable, self._rank, clock)
        self._host_order = EvictionOrder(self._host_evictable, self._rank, clock)
        self._wanted: set[Node] = set()

    # Looking up

    def match(self, namespace: str, tokens: Sequence[int], limit: int) -> Match:
        """The longest cached prefix of `tokens[:limit]` in `namespace`.

        What lies on the host counts only if it is worth a copy.
        """
        size = self.pool.page_size
        root = self.root(namespace)
        node: Node = root
        full: list[Node] = []
        at = 0
        while True:
            block = tuple(tokens[at : min(at + size, limit)])
            child, shared = node.closest(block) if block else (None, 0)
            if child is None or shared < size:
                break
            full.append(child)
            node, at = child, at + size
        found = Match(root, full, child, shared)
        if self.tier is not None:
            there = sum(len(node.tokens) for node in found.on_host())
            if there < self.tier.restore_from:
                found.forget_host()
        return found

    def root(self, namespace: str) -> Root:
        """The namespace's root, which may be new."""
        root = self._known.get(namespace)
        if root is None:
            root = self._known[namespace] = Root(namespace)
        return root

    # Entering and leaving

    def add(self, parent: Node, tokens: Tokens, page: int) -> Node:
        """Cache a page that the caller holds, below `parent`, which has no such child."""
        above = self.pool.page_size if parent.parent is not None else 0
        node = Node(parent, tokens, page, parent.start + above)
        parent.insert(node)
        if isinstance(parent, Root):
            self._roots[parent.namespace] = parent
        self.pool.enter_cache(page)
        self.forecast.arrivals.entered(node)
        return node

    def extend(self, node: Node, tokens: Tokens) -> None:
        """The page of `node` now holds `tokens`, which begin with the node's."""
        parent = node.parent
        assert parent is not None
        parent.remove(node)
        node.tokens = tokens
        node.chain = hash((parent.chain, tokens))
        parent.insert(node)

    def drop(self, node: Node) -> None:
        """Forget a node without children; its page is free unless somebody holds it."""
        self._raise_interests(node)
        parent = node.parent
        assert parent is not None
        parent.remove(node)
        node.parent = None
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.namespace]
        if node.on_device:
            self.pool.leave_cache(node.page)
        else:
            assert self.tier is not None
            self.tier.release(node.host)
        self._offer(parent)

    def _raise_interests(self, node: Node) -> None:
        """Who stands at `node` stands above it from now on, as far as that tells anything."""
        parent = node.parent
        assert parent is not None
        for interest in node.interests:
            gone = interest.ended and self.forecast.of_session(interest) == math.inf
            stays = parent.parent is not None and not gone
            interest.node = parent if stays else None
            if stays:
                parent.interests.append(interest)
        node.interests = []

    def touch(self, node: Node, *, cold: bool = False) -> None:
        """Note a use of `node` and all above it. `cold`: the first to go, unless used again."""
        now = 0 if cold else next(self._uses)
        current: Node | None = node
        while current is not None:
            current.last_use = max(current.last_use, now)
            current = current.parent
        self._offer(node)

    # What is known of sessions

    def begin(self, interest: Interest, found: Match | None, tokens: Sequence[int]) -> None:
        """A step of the interest's session starts, with what was found of its `tokens`.

        A new session that goes on from the text of one that ended was foretold by that; it counts
        as a stranger only on the pages behind.
        """
        self._stand(interest, None)
        if interest.began or found is None or not self._hints:
            return
        interest.began = True
        size = self.pool.page_size
        stems = self._stems(found, tokens)
        foretold = 0
        for depth, stem in enumerate(stems):
            following = tuple(tokens[depth * size : (depth + 1) * size - 1])
            before = self.forecast.continued(stem, following)
            if before is not None:
                foretold = depth
                interest.turn = before.turn + 1
                self._stand(before, None)
        there = len(found.full)
        missed = stems[1 + max(foretold, there) :]
        self.forecast.arrivals.came(found.full[foretold:], missed)

    def _stems(self, found: Match, tokens: Sequence[int]) -> list[int]:
        """The chained hashes of no, one, two, … whole pages of `tokens`."""
        size = self.pool.page_size
        stems = [found.root.chain, *(node.chain for node in found.full)]
        for at in range(len(found.full) * size, len(tokens) - size + 1, size):
            stems.append(hash((stems[-1], tuple(tokens[at : at + size]))))
        return stems

    def resume(self, interest: Interest) -> None:
        """The interest's session has a step that waits to be served."""
        self.forecast.resumed(interest)
        interest.queued = True
        self._stand(interest, interest.node)

    def settle(self, interest: Interest, node: Node | None) -> None:
        """The tokens of the interest's session end at `node` now (None, or a root: nowhere)."""
        told = node is interest.node or interest.ended
        if not told and node is not None and node.parent is not None:
            whole = len(node.tokens) == self.pool.page_size
            interest.stem = node.chain if whole else node.parent.chain
            interest.text = hash((interest.stem, () if whole else node.tokens))
        self._stand(interest, node)

    def move(self, node: Node, to: Node) -> None:
        """Who stands at `node` stands at `to` from now on, which holds the same tokens."""
        for interest in list(node.interests):
            self._stand(interest, to)

    def _stand(self, interest: Interest, node: Node | None) -> None:
        before, interest.node = interest.node, None
        if before is not None:
            before.interests.remove(interest)
            self._offer(before)
        if node is not None and node.parent is not None:
            interest.node = node
            node.interests.append(interest)
            self._offer(node)

    def expect(self, interest: Interest, next_use: int | None, place: str = "") -> None:
        """What is known of the next use: so many steps until then (None: there is none), and
        where in its program the session stands ("": where it stood)."""
        if interest.ended:
            if next_use is None:
                return
            self.forecast.resumed(interest)
        interest.place = place or interest.place
        if next_use is None:
            self.forecast.abandoned(interest)
        interest.next_use, interest.ended = next_use, next_use is None
        interest.since = self.forecast.now()
        if interest.ended and interest.began and interest.stem:
            for other in self.forecast.ended(interest):
                self._stand(other, None)
        self._stand(interest, interest.node)

    # Giving up

    def take_page(self) -> int | None:
        """A free page, evicting if there is none; None if every page is locked."""
        page = self.pool.take()
        if page is None and self.evict(1):
            page = self.pool.take()
        return page

    def evict(self, pages: int) -> int:
        """Take up to `pages` pages from the device, those worth least first; returns how many."""
        done = 0
        while done < pages and (node := self._order.take()) is not None:
            if not self._offload(node):
                self._lose(node)
            done += 1
        self.evicted += done
        return done

    def _offload(self, node: Node) -> bool:
        """Move a node to the host. False: there is no room for it."""
        if self.tier is None:
            return False
        if not self.tier.free:
            last = self._host_order.take()
            if last is None:
                return False
            self._lose(last)
        node.host = self.tier.save(node.page)
        self._leave_device(node)
        return True

    def _leave_device(self, node: Node) -> None:
        assert node.parent is not None
        page, node.page = node.page, -1
        node.parent.resident -= 1
        self.pool.leave_cache(page)
        self._offer(node)
        self._offer(node.parent)

    def _lose(self, node: Node) -> None:
        """Give up a node for good, with what lies on the host below it."""
        for child in list(node.children):
            self._lose(child)
        self.forecast.arrivals.left(node)
        self.drop(node)

    def flush(self) -> None:
        """Give up all that nobody holds, on the host too."""
        self.evict(self.pool.pages)
        while (node := self._host_order.take()) is not None:
            self._lose(node)

    # Coming back

    def restore(self, nodes: Sequence[Node]) -> list[Node]:
        """Copy nodes of one path back from the host, parents first, as far as there is room.

        Returns those that came; the caller is a holder of each.
        """
        assert self.tier is not None or not nodes
        self._wanted = set(nodes)
        came = []
        for node in nodes:
            page = self.take_page()
            if page is None:
                break
            assert self.tier is not None
            self.tier.restore(node.host, page)
            self._enter_device(node, page)
            came.append(node)
        self._wanted = set()
        for node in nodes[len(came) :]:
            self._offer(node)
        return came

    def adopt(self, node: Node, page: int) -> None:
        """A page that the caller holds has the KV of a node on the host: it takes its place."""
        assert self.tier is not None
        self.tier.release(node.host)
        self._enter_device(node, page)

    def _enter_device(self, node: Node, page: int) -> None:
        assert node.parent is not None
        node.page, node.host = page, -1
        node.parent.resident += 1
        self.pool.enter_cache(page)

    # The order

    def _offer(self, node: Node) -> None:
        """Consider a node for eviction, from where it lies."""
        self._order.offer(node)
        if self.tier is not None:
            self._host_order.offer(node)

    def _evictable(self, node: Node) -> bool:
        return (
            node.parent is not None
            and node.page >= 0
            and not node.resident
            and not self.pool.holders[node.page]
        )

    def _host_evictable(self, node: Node) -> bool:
        return (
            node.parent is not None
            and node.host >= 0
            and not node.children
            and node not in self._wanted
        )

    def _rank(self, node: Node) -> Rank:
        if not self._hints:
            return -math.inf, node.last_use
        cost = len(node.tokens) / self.pool.page_size * (1 + node.start / _LONG)
        return -self.forecast.remaining(node) / cost, node.last_use

    def stranded(self) -> list[Node]:
        """Nodes that could be given up but never would be: there are none (for the audit)."""
        pairs = (self._order, self._evictable), (self._host_order, self._host_evictable)
        nodes = [node for _, node in self.nodes()]
        return [
            node
            for order, evictable in pairs
            for node in {*filter(evictable, nodes)} - order.standing()
        ]

    def roots(self) -> dict[str, Root]:
        """The roots that are remembered (for the audit)."""
        return dict(self._known)

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Every node with its namespace, parents first (for the audit)."""
        for namespace, root in self._roots.items():
            stack = list(root.children)
            while stack:
                node = stack.pop()
                yield namespace, node
                stack.extend(node.children)
