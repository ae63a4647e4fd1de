"""The contract between the engine and a decoder: one forward pass, and where its KV lives.

What lives here: `ForwardBatch`, `KVStorage` and the `Decoder` protocol. What does not: the
bookkeeping of pages (`runtime/engine/kv_pool.py`) and any arithmetic.

A batch holds rows of several sequences, one after the other. Sequence i owns the rows
[query_starts[i], query_starts[i + 1]); its last row sees context_lens[i] tokens, itself
included, so row r of sequence i stands at position
context_lens[i] - (query_starts[i + 1] - r). A decode step is a sequence with one row, a
prefill chunk one with many; both mix freely.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Protocol

import torch

from phloem.runtime.model.memory import zeros

__all__ = ["Decoder", "ForwardBatch", "KVStorage"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class KVStorage:
    """Keys and values of all pages. Token slot = page * page_size + offset in the page.

    `keys[layer]` and `values[layer]` have shape [pages, page_size, kv_heads, head_dim].
    Keys are stored after rotation, so a page is valid at its own positions only.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    page_size: int

    @classmethod
    def zeros(
        cls,
        layers: int,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVStorage:
        """Zeroed storage; `shape` is [pages, page_size, kv_heads, head_dim].

        A pool on a CPU takes room only as it is used.
        """

        def layer() -> torch.Tensor:
            if device.type != "cpu":
                return torch.zeros(shape, dtype=dtype, device=device)
            return zeros(shape, dtype)

        keys, values = ([layer() for _ in range(layers)] for _ in range(2))
        return cls(keys, values, shape[1])

    def prefault(self) -> None:
        """Have the system give the memory of an unused CPU pool now, rather than at first use."""
        for layer in (*self.keys, *self.values):
            layer.view(-1).view(torch.uint8)[:: mmap.PAGESIZE] = 0


@dataclass(slots=True)
class ForwardBatch:
    """One forward pass over `rows` tokens of `seqs` sequences."""

    tokens: torch.Tensor
    """int64 [rows]"""
    positions: torch.Tensor
    """int64 [rows], position of each row in its own sequence"""
    slots: torch.Tensor
    """int64 [rows], KV slot that each row's key and value are written to"""
    query_starts: list[int]
    """[seqs + 1], half-open row intervals"""
    context_lens: list[int]
    """[seqs], tokens visible to the sequence's last row, itself included"""
    pages: torch.Tensor
    """int64 [seqs, max_pages], page table of each sequence, padded with 0"""
    logit_rows: torch.Tensor
    """int64 [wanted], the rows whose logits are asked for, ascending"""
    likeliest: list[int] | None = None
    """[wanted], filled by a decoder that finds it on the way: the first largest logit of each of
    these rows, -1 where one is NaN"""


class Decoder(Protocol):
    """A decoder-only transformer."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits; ids at or above the tokenizer's size are never sampled."""
        ...

    @property
    def max_positions(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        ...

    @property
    def device(self) -> torch.device:
        """Where weights and KV live."""
        ...

    def new_kv(self, pages: int, page_size: int) -> KVStorage:
        """Storage for `pages` pages in the model's own KV type."""
        ...

    def kv_bytes_per_token(self) -> int:
        """2 * layers * kv_heads * head_dim * bytes of an element."""
        ...

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """Write the rows' KV, and return float32 logits [wanted, vocab_size]."""
        ...
