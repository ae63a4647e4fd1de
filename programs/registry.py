"""How `programs` finds the parts it may not import: by name, resolved when first needed.

What lives here: the table of names and the lookup. What does not: the parts themselves. The
face (`phloem/__init__.py`) fills the table with the built-in parts as "module:attribute"
strings; installed packages may add more through the entry-point group "phloem.NAME".

Known names: "backend" (kinds of `protocol.Backend` factories), "analyser" (makers of a
`grammar.spec.Analyser`), "retriever" (makers of a `retrieval.base.Retriever`).
"""

from __future__ import annotations

import importlib
import threading
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from phloem.errors import ConfigError

__all__ = ["default", "register", "reset", "set_default"]

_makers: dict[str, str | Callable[[], Any]] = {}
_made: dict[str, Any] = {}
# One lock a name: a model that loads for seconds must not hold up who wants another part.
_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)


def register(name: str, maker: str | Callable[[], Any]) -> None:
    """Say how the default `name` is made: a callable, or "module:attribute" of one."""
    with _locks[name]:
        _makers[name] = maker


def set_default(name: str, part: Any) -> None:
    """Use `part` as the default `name` from now on, in place of a made one."""
    with _locks[name]:
        _made[name] = part


def reset(name: str) -> None:
    """Forget the default that was made or set; the next lookup makes it anew."""
    with _locks[name]:
        _made.pop(name, None)


def default(name: str) -> Any:
    """The process-wide default `name`, made at the first call. Raises `ConfigError`."""
    with _locks[name]:
        if name not in _made:
            _made[name] = _maker(name)()
        return _made[name]


def _maker(name: str) -> Callable[[], Any]:
    maker = _makers.get(name)
    if maker is None:
        for point in entry_points(group=f"phloem.{name}"):
            maker = point.load()
            break
    if maker is None:
        raise ConfigError(f"no {name} is registered", hint="import phloem, or call register()")
    if isinstance(maker, str):
        module, _, attribute = maker.partition(":")
        maker = getattr(importlib.import_module(module), attribute)
    assert callable(maker)
    return maker
