"""Random numbers for sampling that depend on the request alone.

What lives here: `Noise`, one uniform number per (seed, branch, position). What does not: how a
token is chosen with it (`sampler.py`).

The number comes from a counter-based generator (SplitMix64, Steele et al. 2014), computed on
the host in integers: it is the same on every device and whatever else shares the batch, and it
can be drawn for any position at any time, so a draft can be checked and a suspended run resumed
without any generator state. One uniform with the inverse of the cumulative distribution is
preferred to a Gumbel number per vocabulary entry: it costs one hash a token, not 49,152.
"""

from __future__ import annotations

import hashlib

__all__ = ["Noise"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Noise:
    """The stream of one (seed, branch)."""

    __slots__ = ("_key",)

    def __init__(self, seed: int, branch: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{branch}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "little")

    def uniform(self, position: int) -> float:
        """A number in [0, 1) for the token at `position` of the session."""
        z = (self._key + (position + 1) * _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
        return (z >> 11) / (1 << 53)
