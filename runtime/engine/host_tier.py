"""Host memory for the KV that the device has no room for.

What lives here: `HostTier`, pages of host memory with copying there and back, and `break_even`,
from how many tokens on a copy beats computing them anew. What does not: which pages go there and
which leave it (`radix_cache.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from phloem.runtime.model.batch import KVStorage

__all__ = ["HostTier", "break_even"]

NEVER = 1 << 40
"""Tokens: more than any prefix has."""


class HostTier:
    """`pages` pages of `host` memory for the KV of `device`. Not thread-safe.

    A prefix comes back by copy if `restore_from` of its tokens or more lie here.
    """

    def __init__(self, device: KVStorage, host: KVStorage, pages: int, restore_from: int) -> None:
        self.pages = pages
        self.restore_from = restore_from
        self.saved = self.restored = 0
        """Pages copied to the host, and back."""
        self._device = device
        self._host = host
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Host pages that hold nothing."""
        return len(self._free)

    def free_pages(self) -> set[int]:
        """The free host pages, for the audit."""
        return set(self._free)

    def save(self, page: int) -> int:
        """Copy a page of the device to a free host page, which there must be; returns it."""
        target = self._free.pop()
        self.copy(self._device, page, self._host, target)
        self.saved += 1
        return target

    def restore(self, source: int, page: int) -> None:
        """Copy a host page to a page of the device; the host page is free then."""
        self.copy(self._host, source, self._device, page)
        self.restored += 1
        self.release(source)

    def release(self, page: int) -> None:
        """What a host page holds is not needed any more."""
        self._free.append(page)

    @staticmethod
    def copy(source: KVStorage, page: int, target: KVStorage, to: int) -> None:
        """Copy a page's keys and values of all layers."""
        with torch.no_grad():
            for ours, theirs in ((source.keys, target.keys), (source.values, target.values)):
                for one, other in zip(ours, theirs, strict=True):
                    other[to].copy_(one[page], non_blocking=True)

    def storage(self) -> KVStorage:
        """The host's keys and values, for checks."""
        return self._host


def break_even(
    copy_s: Callable[[int], float], compute_s: Callable[[int], float], page_size: int, limit: int
) -> int:
    """The fewest tokens, in whole pages, for which copying takes less time than computing.

    `copy_s` gives the seconds that copying so many pages takes, `compute_s` those of computing so
    many tokens; powers of two up to `limit` tokens are tried. `NEVER` if copying never wins.
    """
    pages = 1
    while pages * page_size <= limit:
        if copy_s(pages) < compute_s(pages * page_size):
            return pages * page_size
        pages *= 2
    return NEVER
