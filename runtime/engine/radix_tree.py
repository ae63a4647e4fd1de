"""The nodes of the prefix cache: pages by their tokens, and looking a prefix up in them.

What lives here: `Node` and `Root`, `Match`, and `Interest`, what is known of a session that stands
at a node.
What does not: whose pages they are and which go first (`radix_cache.py`).

A node is one page: an edge of 1 to `page_size` tokens. Only a full page has children, so a page
always holds the tokens of one aligned block of positions and is never split. Siblings may share
their first tokens (they diverge inside the page); a match takes the sibling with the longest
common prefix. Children are kept sorted by their tokens, because that sibling is then a neighbour
of where the tokens sought would stand.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TypeAlias

from phloem.runtime.engine.tokens import common_prefix

__all__ = ["Interest", "Match", "Node", "Rank", "Root", "Tokens"]

Tokens: TypeAlias = tuple[int, ...]
Rank: TypeAlias = tuple[float, int]


class Interest:
    """What is known of the next use that a session has for its KV.

    `next_use` is the number of steps until then (None: not known, or never) and `place` where in
    its program the session stands; `queued` is set while a step of the session waits already,
    `ended` once it is not to have another. `since` is when this was said. `node` is where the
    session's tokens end in the cache, or as much of them as is still there. `turn` is how many
    ended sessions its text goes on from, one after the other; `stem` and `text` are hashes of the
    whole pages of its tokens, and of all of them.
    """

    __slots__ = (
        "began", "ended", "next_use", "node", "place", "queued", "since", "stem", "text", "turn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_use: int | None = None
        self.place = ""
        self.queued = False
        self.ended = False
        self.began = False
        """Whether the session has had a step."""
        self.since = 0.0
        self.turn = self.stem = self.text = 0
        self.node: Node | None = None


class Node:
    """One cached page, whose first token stands at position `start`.

    Its KV lies in the device's page `page`, or (`page` is -1) in the host's page `host`. A node
    on the device has all nodes above it there; `resident` counts its children there. `writer` is
    True while a sequence appends to the page in place. `chain` is a hash of all tokens from the
    root to the end of a full page.

    Of the new sessions that came by unforetold, `visits` is their number (the late ones count
    more), `span` the seconds in which they came and `seen` when the last one did. `rank` is the
    node's place in the order of eviction, as last reckoned.
    """

    __slots__ = (
        "chain", "children", "host", "interests", "keys", "last_use", "page", "parent",
        "rank", "resident", "seen", "span", "start", "tokens", "visits", "writer",
    )  # fmt: skip

    def __init__(self, parent: Node | None, tokens: Tokens, page: int, start: int = 0) -> None:
        self.parent = parent
        self.start = start
        self.interests: list[Interest] = []
        self.tokens = tokens
        self.chain: int = hash((parent.chain if parent is not None else 0, tokens))
        self.page = page
        self.host = -1
        self.keys: list[Tokens] = []
        self.children: list[Node] = []
        self.resident = 0
        self.last_use = 0
        self.writer = False
        self.visits = self.span = self.seen = 0.0
        self.rank: Rank | None = None

    @property
    def on_device(self) -> bool:
        """Whether its KV lies in the device's pool."""
        return self.page >= 0

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
        self.resident += node.on_device

    def remove(self, node: Node) -> None:
        """Take a child out."""
        at = bisect_left(self.keys, node.tokens)
        del self.keys[at], self.children[at]
        self.resident -= node.on_device


class Root(Node):
    """The top of a namespace's tree. It has no page, and lives as long as anybody refers to it."""

    __slots__ = ("__weakref__", "namespace")

    def __init__(self, namespace: str) -> None:
        super().__init__(None, (), -1)
        self.namespace = namespace
        self.chain = hash(namespace)


@dataclass(slots=True)
class Match:
    """The longest cached prefix: `full` pages from the root, then `tail` tokens of `partial`.

    The pages on the host, if any, are the last ones.
    """

    root: Root
    full: list[Node]
    partial: Node | None
    tail: int

    def on_host(self) -> list[Node]:
        """The nodes whose KV would have to be copied from the host."""
        nodes = self.full if self.partial is None else [*self.full, self.partial]
        return [node for node in nodes if not node.on_device]

    def forget_host(self) -> None:
        """Leave only what lies on the device."""
        if self.partial is not None and not self.partial.on_device:
            self.partial, self.tail = None, 0
        while self.full and not self.full[-1].on_device:
            self.full.pop()
