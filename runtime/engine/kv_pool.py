"""Pages of KV memory: which are free, who holds the others, and copying part of one.

What lives here: `KVPool`. What does not: what the pages contain (`radix_cache.py` knows whose
tokens, `runtime/model/batch.py` how they are laid out) and who must give way when none is left.

A page is in exactly one of three states:

    free      nobody needs it
    cached    only the prefix cache keeps it: it may be evicted
    used      at least one holder (a running sequence, a pin) needs it, cached or not

so free + cached + used = pages, at any moment.
"""

from __future__ import annotations

from typing import Any

import torch

from phloem.runtime.model.batch import KVStorage

__all__ = ["KVPool"]


class KVPool:
    """Counts the owners of `pages` pages of `storage`. Not thread-safe."""

    def __init__(self, storage: KVStorage, pages: int) -> None:
        self.storage = storage
        self.pages = pages
        self.page_size = storage.page_size
        self.holders = [0] * pages
        self.in_cache = bytearray(pages)
        self._free = list(range(pages - 1, -1, -1))
        self._cached = 0
        # numpy takes a tenth of torch's time to copy a few tokens.
        self._layers: list[Any] = [
            layer.view(torch.uint8).numpy() if layer.device.type == "cpu" else layer
            for layer in (*storage.keys, *storage.values)
        ]

    @property
    def free(self) -> int:
        """Pages nobody needs."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages only the cache keeps."""
        return self._cached

    @property
    def used(self) -> int:
        """Pages with at least one holder."""
        return self.pages - len(self._free) - self._cached

    def take(self) -> int | None:
        """A free page, now with one holder; None if there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self.holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that is cached or used."""
        if not self.holders[page]:
            self._cached -= 1
        self.holders[page] += 1

    def release(self, page: int) -> None:
        """Take a holder away; the page is then free, unless it is cached or held by others."""
        self.holders[page] -= 1
        if self.holders[page]:
            return
        if self.in_cache[page]:
            self._cached += 1
        else:
            self._free.append(page)

    def enter_cache(self, page: int) -> None:
        """The cache keeps a page that has a holder now."""
        self.in_cache[page] = 1

    def leave_cache(self, page: int) -> None:
        """The cache gives the page up; it is free unless somebody holds it."""
        self.in_cache[page] = 0
        if not self.holders[page]:
            self._cached -= 1
            self._free.append(page)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the KV of the first `tokens` tokens of one page to another."""
        for layer in self._layers:
            layer[target, :tokens] = layer[source, :tokens]

    def free_pages(self) -> set[int]:
        """The free pages, for the audit."""
        return set(self._free)
