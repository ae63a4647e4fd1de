"""The SGLang backend that the settings ask for.

What lives here: `sglang_backend`. What does not: the backends (`runtime/sglang`), and the embedded
engine (`http/serve.py`, `cli/model.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from phloem.errors import ConfigError
from phloem.programs.protocol import Backend
from phloem.runtime.sglang.backend import RuntimeEndpoint
from phloem.runtime.sglang.launch import Runtime
from phloem.server.settings import Settings

__all__ = ["sglang_backend"]


def sglang_backend(settings: Settings) -> Backend:
    """The servers at `sglang_url`, or one with the model of the settings that is started here.

    With addresses the model names the tokenizer, where the servers' own is not on this machine.
    Raises `ConfigError` for settings that don't go together.
    """
    if settings.sglang_url:
        key = settings.sglang_api_key
        secret = None if key is None else key.get_secret_value()
        return RuntimeEndpoint(settings.sglang_url, secret, settings.model)
    if settings.model is None:
        raise ConfigError(
            "SGLang needs a model to start a server with",
            hint="give --model, or the address of a running server: --sglang-url",
        )
    return Runtime(
        settings.model,
        python=settings.sglang_python,
        tp=settings.sglang_tp,
        mem_fraction_static=settings.sglang_mem_fraction_static,
        **_arguments(settings.sglang_args),
    )


def _arguments(texts: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE, or NAME for a flag; the names as on the server's command line or in Python."""
    found: dict[str, Any] = {}
    for text in texts:
        flag, equals, value = text.strip().removeprefix("--").partition("=")
        name = flag.replace("-", "_")
        if name in inspect.signature(Runtime).parameters:
            raise ConfigError(f"{flag} is a setting of its own", hint=f"set sglang_{name}")
        found[name] = value if equals else True
    return found
