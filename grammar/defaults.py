"""The default tokenizer of `phloem.grammar.testing`, set from above.

What lives here: one setting, in a module that costs nothing to import. What does not: tokenizers.
The face of phloem names a maker here; grammar itself knows no model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from phloem.errors import ConfigError

__all__ = ["default_tokenizer", "set_default_tokenizer"]

_maker: str | Callable[[], Any] | None = None


def set_default_tokenizer(maker: str | Callable[[], Any]) -> None:
    """Say what makes the default tokenizer: a callable, or "module:attribute" of one.

    It returns whatever `phloem.grammar.testing.accepts` takes as `tokenizer`.
    """
    global _maker
    _maker = maker


def default_tokenizer() -> Any:
    """A new default tokenizer. Raises `ConfigError` if no maker was set."""
    if _maker is None:
        raise ConfigError(
            "no default tokenizer is set",
            hint="give tokenizer=, or call phloem.grammar.testing.set_default_tokenizer()",
        )
    if isinstance(_maker, str):
        module, _, attribute = _maker.partition(":")
        return getattr(importlib.import_module(module), attribute)()
    return _maker()
