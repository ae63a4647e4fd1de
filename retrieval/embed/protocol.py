"""What an index needs from an embedding model.

What lives here: the protocol and the checks of what it returns. What does not: a model
(`minilm.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from phloem.errors import RetrievalError

__all__ = ["Cutting", "Embedder", "Matrix", "check_dims", "check_embedder", "unit_vector"]

Matrix: TypeAlias = NDArray[np.float32]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors whose cosine says how alike they are.

    `name` is kept with an index, so that it is searched with the model that filled it.
    """

    name: str
    dims: int

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Vectors of length 1, float32 [len(texts), dims]. Called from worker threads."""
        ...


@runtime_checkable
class Cutting(Embedder, Protocol):
    """An embedder that reads no more than `max_tokens` of a text."""

    max_tokens: int

    def first_cut(self, texts: Sequence[str]) -> int | None:
        """The place of the first of `texts` that is longer; None if there is none."""
        ...


def check_dims(given: int, wanted: int, *, what: str, index: str) -> None:
    """Raise `RetrievalError` with both numbers unless `given` equals `wanted`."""
    if given != wanted:
        raise RetrievalError(
            f"{what} has {given} dimensions, but index {index!r} keeps vectors of {wanted}",
            hint="use the embedding model that filled the index, or rebuild the index",
            given=given,
            wanted=wanted,
            index=index,
        )


def check_embedder(given: str, kept: str | None, *, index: str) -> None:
    """Raise `RetrievalError` if an index filled with the model `kept` meets another, `given`."""
    if kept is not None and given != kept:
        raise RetrievalError(
            f"index {index!r} was filled with the embedder {kept!r}, not with {given!r}",
            hint="use the embedding model that filled the index, or rebuild the index",
            given=given,
            wanted=kept,
            index=index,
        )


def unit_vector(values: Sequence[float]) -> Matrix:
    """`values` as float32 [dims] of length 1. Raises `RetrievalError` if that can't be."""
    wrong = RetrievalError("a vector must be a list of finite numbers that are not all zero")
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise wrong from None
    norm = float(np.linalg.norm(vector))
    if vector.ndim != 1 or not np.isfinite(norm) or norm == 0.0:
        raise wrong
    return vector / np.float32(norm)
