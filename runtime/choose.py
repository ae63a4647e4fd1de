"""A backend by the name of its kind, for settings and command lines.

What lives here: `make_backend`. What does not: the backends.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from phloem.errors import ConfigError
from phloem.programs.protocol import Backend

__all__ = ["Kind", "make_backend"]

Kind = Literal["embedded", "sglang"]


def make_backend(
    kind: Kind, model: str | None = None, *, urls: Sequence[str] = (), **options: Any
) -> Backend:
    """The embedded engine, SGLang servers at `urls`, or without any a server that is started.

    `model` is the embedded engine's, or the one that a server is started with; with `urls` it is
    the model's tokenizer, where the servers' own is not on this machine. `options` are those of
    `EmbeddedBackend`, `RuntimeEndpoint` or `Runtime`. Raises `ConfigError` for what does not go
    together.
    """
    if kind == "embedded":
        if urls:
            raise ConfigError("URLs are for the SGLang backend", hint="add --backend sglang")
        # torch is loaded with the engine, not before.
        embedded = importlib.import_module("phloem.runtime.embedded")
        return _made(embedded.EmbeddedBackend, [] if model is None else [model], options)
    if urls:
        endpoint = importlib.import_module("phloem.runtime.sglang.backend")
        return _made(endpoint.RuntimeEndpoint, [list(urls)], {"tokenizer": model, **options})
    if model is None:
        raise ConfigError(
            "SGLang needs a model to start a server with",
            hint="give --model, or the address of a running server: --sglang-url",
        )
    launch = importlib.import_module("phloem.runtime.sglang.launch")
    return _made(launch.Runtime, [model], options)


def _made(kind: Any, values: Sequence[Any], options: Mapping[str, Any]) -> Backend:
    made: Backend = kind(*values, **options)
    return made
