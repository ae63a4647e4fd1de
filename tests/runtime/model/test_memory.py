"""Zeroed memory that is there at once."""

import mmap
from pathlib import Path

import pytest
import torch

from phloem.runtime.model.batch import KVStorage
from phloem.runtime.model.memory import Arena, zeros


@pytest.mark.parametrize("shape", [(3,), (1, 7, 2, 64), (513, 16, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_zeros_begin_on_a_cache_line_and_can_be_written(shape, dtype):
    """Size and type are those asked for, all is zero, and vector loads are aligned."""
    made = zeros(shape, dtype)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.data_ptr() % 64 == 0
    assert not made.count_nonzero()
    made[0] = 1
    assert made.sum() == made[0].numel()


def test_an_arena_hands_out_separate_zeroed_lines_of_one_piece_of_memory():
    """Pieces begin on a cache line, don't overlap, and lie side by side."""
    arena = Arena()
    pieces = [arena.zeros(size) for size in (1, 64, 100, 1000)]
    addresses = [piece.data_ptr() for piece in pieces]
    assert [address - addresses[0] for address in addresses] == [0, 64, 128, 256]
    assert all(address % 64 == 0 for address in addresses)
    for piece in pieces:
        assert not piece.any()
        piece.fill_(255)


def test_an_arena_gives_what_is_larger_than_its_pieces():
    """One array may be larger than what is taken at a time; the others are not touched."""
    arena = Arena()
    small, large = arena.zeros(10), arena.zeros(100_000_000)
    large[:100] = 1
    assert not small.any()
    assert large.numel() == 100_000_000
    assert not arena.zeros(10).any()


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_pool_takes_its_memory_as_it_is_used_or_at_once():
    """A new pool has no memory of its own yet; after `prefault` it has all, still zero."""
    # Arrays of more than 32 MB: smaller ones may get memory that the process has left over.
    before = _resident()
    pool = KVStorage.zeros(1, (6000, 16, 4, 64), torch.bfloat16, torch.device("cpu"))
    size = sum(layer.nbytes for layer in (*pool.keys, *pool.values))
    assert _resident() - before < size // 2
    pool.prefault()
    assert _resident() - before > size * 3 // 4
    assert not any(layer.any() for layer in (*pool.keys, *pool.values))
