"""Host memory for the KV that the device has no room for.

What lives here: `HostTier`, pages of host memory with copying there and back, and `break_even`,
from how many tokens on a copy beats computing them anew, with `host_tier`, which measures it.
What does not: which pages go there and which leave it (`radix_cache.py`).

All copies run on the device's one stream, so a page is never read before it is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from phloem.runtime.model.batch import Decoder, ForwardBatch, KVStorage
from phloem.runtime.model.memory import zeros

__all__ = ["HostTier", "break_even", "host_tier"]

_MEASURED = 512
"""Tokens up to which computing and copying are timed."""

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


def host_tier(
    decoder: Decoder, device: KVStorage, pages: int, restore_from: int | None
) -> HostTier | None:
    """Room for `pages` pages of the decoder's KV, whose pool `device` nobody uses yet; None for
    none. Without `restore_from` the break-even is measured: that takes a few passes."""
    if not pages:
        return None
    tier = HostTier(device, _host_storage(device, pages), pages, restore_from or NEVER)
    if restore_from is None:
        tier.restore_from = _measure(decoder, device, tier)
    return tier


def _host_storage(device: KVStorage, pages: int) -> KVStorage:
    def like(layer: torch.Tensor) -> torch.Tensor:
        shape = (pages, *layer.shape[1:])
        if layer.device.type == "cpu":
            return zeros(shape, layer.dtype)
        return torch.empty(shape, dtype=layer.dtype, pin_memory=True)

    keys, values = ([like(layer) for layer in part] for part in (device.keys, device.values))
    return KVStorage(keys, values, device.page_size)


def _measure(decoder: Decoder, device: KVStorage, tier: HostTier) -> int:
    size = device.page_size
    there = min(device.keys[0].shape[0], tier.pages)

    def seconds(action: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(3):
            _finish(decoder.device)
            began = time.perf_counter()
            action()
            _finish(decoder.device)
            best = min(best, time.perf_counter() - began)
        return best

    def copy(pages: int) -> None:
        for page in range(pages):
            tier.copy(tier.storage(), page, device, page)

    return break_even(
        lambda pages: seconds(lambda: copy(pages)),
        lambda tokens: seconds(lambda: decoder.forward(_prompt(decoder, tokens, size), device)),
        size,
        min(_MEASURED, there * size, decoder.max_positions),
    )


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _prompt(decoder: Decoder, tokens: int, page_size: int) -> ForwardBatch:
    """A prompt of so many tokens in the first pages."""
    rows = torch.arange(tokens, device=decoder.device)
    return ForwardBatch(
        tokens=torch.zeros_like(rows),
        positions=rows,
        slots=rows,
        query_starts=[0, tokens],
        context_lens=[tokens],
        pages=torch.arange(-(-tokens // page_size), device=decoder.device)[None],
        logit_rows=rows[-1:],
    )
