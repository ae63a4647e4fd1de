"""Values cut to what a person reads: what events tell where a run has `trace_values=True`.

What lives here: `glance`. What does not: exact values, and whole ones (`values.py`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from phloem.programs.executor.deferred import Deferred, PendingHits
from phloem.programs.executor.values import plain
from phloem.retrieval.base import Hit, Hits

__all__ = ["glance"]

TEXT = 2000
ITEMS = 50
DEPTH = 5


def glance(value: Any, depth: int = DEPTH) -> Any:
    """`value` as JSON data, cut: long texts, long lists and what lies deep end with "…"."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return plain(value)
    if isinstance(value, str):
        cut = f"{value[:TEXT]}… ({len(value)} characters)"
        return plain(value if len(value) <= TEXT else cut)
    if isinstance(value, Deferred) or (type(value) is PendingHits and not value.deferred.told):
        # To look would be to wait, or to be told its error in the program's place.
        return "… (not read yet)"
    try:
        inner = _opened(value)
    except Exception as error:  # noqa: BLE001 - the user's own properties may raise anything
        return f"<{type(value).__name__}, which raises {type(error).__name__}>"
    if inner is None or depth == 0:
        return glance(_repr(value), depth)
    if isinstance(inner, Mapping):
        pairs = list(inner.items())
        shown = {plain(str(key)[:TEXT]): glance(item, depth - 1) for key, item in pairs[:ITEMS]}
        return shown | ({"…": f"{len(pairs) - ITEMS} more"} if len(pairs) > ITEMS else {})
    items = [glance(item, depth - 1) for item in inner[:ITEMS]]
    return items + ([f"… {len(inner) - ITEMS} more"] if len(inner) > ITEMS else [])


def _opened(value: Any) -> Mapping[Any, Any] | list[Any] | tuple[Any, ...] | None:
    """What a container holds; None for everything else."""
    if isinstance(value, Hits | Hit):
        return value.to_json()
    if isinstance(value, Mapping | list | tuple):
        return value
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return dict(vars(value))
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else None


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the user's own __repr__ may raise anything
        return f"<{type(value).__name__}, whose repr fails: {type(error).__name__}>"
