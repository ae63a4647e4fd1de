"""How sequences come by their pages: from the prefix cache, by copy, or fresh; and give them back.

What lives here: `SequenceKV`, the only writer of `Sequence.pages`. What does not: the tree
(`radix_cache.py`), the counts (`kv_pool.py`) and the choice of who must wait (`memory.py`).

The life of a sequence's pages: `attach` takes over the cached prefix, `grow` adds pages before
each forward pass, `publish` puts what is computed into the cache, `detach` lets go. Between
its steps a session holds nothing here: its KV lies in the cache, unlocked.
"""

from __future__ import annotations

from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.radix_cache import RadixCache
from phloem.runtime.engine.radix_tree import Match, Node
from phloem.runtime.engine.sequence import Sequence

__all__ = ["SequenceKV"]


class SequenceKV:
    """Pages of all sequences of one engine. With `sharing` off nothing is cached at all."""

    def __init__(self, pool: KVPool, cache: RadixCache, *, sharing: bool = True) -> None:
        self.pool = pool
        self.cache = cache
        self.sharing = sharing

    def pages_for(self, tokens: int) -> int:
        """How many pages `tokens` tokens fill."""
        return -(-tokens // self.pool.page_size)

    def cached_prefix(self, seq: Sequence) -> int:
        """How many tokens `attach` would find."""
        if not self.sharing:
            return 0
        found = self.cache.match(seq.namespace, seq.tokens, self._reusable(seq))
        return len(found.full) * self.pool.page_size + found.tail

    def attach(self, seq: Sequence) -> Match | None:
        """Take over the longest cached prefix; at least the rows whose logits are wanted stay.

        A page that is cached in part is continued in place by the first to come, copied by
        the others; without memory for the copy, its tokens are computed again. Returns what was
        taken over; None with sharing off.
        """
        if not self.sharing:
            return None
        found = self.cache.match(seq.namespace, seq.tokens, self._reusable(seq))
        away = found.on_host()
        for node in found.full:
            if node.on_device:
                self.pool.hold(node.page)
        came = self.cache.restore(away)
        if len(came) < len(away):
            found.forget_host()
        seq.pages.extend(node.page for node in found.full)
        seq.node = found.full[-1] if found.full else found.root
        seq.published = len(found.full)
        seq.computed = len(found.full) * self.pool.page_size
        if found.partial is not None:
            if found.partial in came:  # first: what is used while it is held is not offered again
                self.pool.release(found.partial.page)
            self._attach_partial(seq, found.partial, found.tail)
        return found

    def _attach_partial(self, seq: Sequence, node: Node, tokens: int) -> None:
        self.pool.hold(node.page)
        ends_here = len(node.tokens) == tokens < self.pool.page_size
        if ends_here and not node.writer:
            node.writer = True
            seq.tail = node
            seq.pages.append(node.page)
            seq.computed += tokens
            return
        page = self.cache.take_page()
        if page is not None:
            self.pool.copy(node.page, page, tokens)
            seq.pages.append(page)
            seq.computed += tokens
        self.pool.release(node.page)
        self.cache.touch(node)

    def branch(self, parent: Sequence, tokens: list[int], logits_from: int) -> Sequence | None:
        """A sequence that goes on from all of `parent`, which must be computed in full.

        Shares the full pages and copies the rest of one; None without memory for that.
        """
        full, rest = divmod(parent.computed, self.pool.page_size)
        seq = Sequence(parent.namespace, parent.tokens + tokens, logits_from)
        if rest:
            page = self.cache.take_page()
            if page is None:
                return None
            self.pool.copy(parent.pages[full], page, rest)
            seq.pages.append(page)
        for page in parent.pages[:full]:
            self.pool.hold(page)
        seq.pages[:0] = parent.pages[:full]
        seq.computed = parent.computed
        seq.node, seq.published = parent.node, parent.published
        return seq

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Pages for the first `tokens` tokens. False: memory ran out on the way."""
        needed = self.pages_for(tokens)
        while len(seq.pages) < needed:
            page = self.cache.take_page()
            if page is None:
                return False
            seq.pages.append(page)
        return True

    def publish(self, seq: Sequence) -> None:
        """Put all that is computed into the cache, the last page in part; `seq` may go on in it.

        Where the cache has the same tokens already, the sequence goes over to that page.
        """
        if not self.sharing:
            return
        size = self.pool.page_size
        while (seq.published + 1) * size <= seq.computed:
            at = seq.published
            seq.node = self._publish_page(seq, tuple(seq.tokens[at * size : (at + 1) * size]))
            seq.published += 1
        rest = tuple(seq.tokens[seq.published * size : seq.computed])
        if rest:
            self._publish_tail(seq, rest)

    def _publish_page(self, seq: Sequence, block: tuple[int, ...]) -> Node:
        assert seq.node is not None
        known = seq.node.child(block)
        if known is not None:
            if seq.tail is not None:
                self._forget_tail(seq)
            at = seq.published
            if not known.on_device:
                self.cache.adopt(known, seq.pages[at])
                return known
            self.pool.hold(known.page)
            self.pool.release(seq.pages[at])
            seq.pages[at] = known.page
            return known
        if seq.tail is None:
            return self.cache.add(seq.node, block, seq.pages[seq.published])
        node = seq.tail
        self.cache.extend(node, block)
        self._leave_tail(seq)
        return node

    def _publish_tail(self, seq: Sequence, rest: tuple[int, ...]) -> None:
        assert seq.node is not None
        if seq.tail is not None and seq.tail.tokens == rest:
            return
        closest, shared = seq.node.closest(rest)
        if shared == len(rest):  # another page holds these tokens and maybe more
            if seq.tail is not None:
                self._forget_tail(seq)
        elif seq.tail is not None:
            self.cache.extend(seq.tail, rest)
        else:
            seq.tail = self.cache.add(seq.node, rest, seq.pages[seq.published])
            seq.tail.writer = True
            if closest is not None and closest.tokens == rest[:shared]:
                self._replace_unlocked(closest, seq.tail)

    def _replace_unlocked(self, node: Node, by: Node) -> None:
        """Drop a node whose tokens another page holds too now, unless it is in use."""
        if not (node.on_device and self.pool.holders[node.page]) and not node.children:
            self.cache.move(node, by)
            self.cache.drop(node)

    def detach(self, seq: Sequence, *, cold: bool = False) -> Node | None:
        """Give every page back; returns the cache's last node of the sequence.

        `cold`: what the cache keeps of it is the first to be evicted.
        """
        last = seq.tail or seq.node
        self._leave_tail(seq)
        for page in seq.pages:
            self.pool.release(page)
        del seq.pages[:]
        seq.guess([])
        seq.computed = seq.published = 0
        seq.node = None
        if last is not None:
            self.cache.touch(last, cold=cold)
        return last

    def _leave_tail(self, seq: Sequence) -> None:
        if seq.tail is not None:
            seq.tail.writer = False
            seq.tail = None

    def _forget_tail(self, seq: Sequence) -> None:
        assert seq.tail is not None
        seq.tail.writer = False
        self.cache.drop(seq.tail)
        seq.tail = None

    @staticmethod
    def _reusable(seq: Sequence) -> int:
        return min(seq.logits_from, len(seq.tokens))

    def pages_needed(self, seq: Sequence) -> int:
        """Free or evictable pages that `seq` would take, `attach` and all its tokens included."""
        total = self.pages_for(len(seq.tokens))
        if not self.sharing:
            return total
        found = self.cache.match(seq.namespace, seq.tokens, self._reusable(seq))
        locked = sum(node.on_device and self.pool.holders[node.page] > 0 for node in found.full)
        return total - locked
