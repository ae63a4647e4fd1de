"""Embedding models by name, so that an index is searched with the model that filled it.

What lives here: the table, and one instance of each model per process. What does not: models.
"""

from __future__ import annotations

import threading

from phloem.errors import ConfigError
from phloem.retrieval.embed.protocol import Embedder
from phloem.retrieval.lazy import load

__all__ = ["DEFAULT", "embedder_named"]

DEFAULT = "all-MiniLM-L6-v2"
"""The default model: 384 dimensions, offline once installed."""

_MAKERS = {DEFAULT: "phloem.retrieval.embed.minilm:MiniLM"}
_made: dict[str, Embedder] = {}
_lock = threading.Lock()


def embedder_named(name: str | None, index: str | None = None) -> Embedder:
    """The embedder called `name`, loaded at the first call.

    `index` is the index that asks, for the message. Raises `ConfigError` for a name that is not
    known here, or a model that is not installed.
    """
    if name not in _MAKERS:
        filled = f"index {index!r} was filled with" if index else "there is no embedder"
        called = f"the embedder {name!r}" if name else "vectors of its owner's making"
        raise ConfigError(
            f"{filled} {called}" if index else f"{filled} {name!r}",
            hint="pass embedder= to the retriever, or vector= in the query",
        )
    with _lock:
        if name not in _made:
            _made[name] = load(_MAKERS[name])()
        return _made[name]
