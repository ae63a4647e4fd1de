"""What is different between two versions of a program, in words.

What lives here: the comparison of two graphs' data. What does not: deciding that a run is
stale (`manager.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["changes"]

_PLACES = {"file", "line", "column"}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Nodes added, removed and changed; if there are none, the code around them changed."""
    before = {node["id"]: node for node in old.get("nodes", ())}
    after = {node["id"]: node for node in new.get("nodes", ())}
    found = [f"node {name} was removed" for name in before if name not in after]
    found += [f"node {name} was added" for name in after if name not in before]
    for name, node in before.items():
        if name in after and (fields := _different(node, after[name])):
            found.append(f"node {name} changed its {', '.join(fields)}")
    return found or ["the program's code changed outside of its nodes"]


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**old, **new} if name not in _PLACES]
    return [name for name in names if old.get(name) != new.get(name)]
