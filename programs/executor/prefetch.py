"""Starting a retrieval before its place, where that can't be seen but by the clock.

What lives here: deciding which retrievals are certain to run from a node, and starting them.
What does not: the retrieval itself (`services.py`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping

from phloem.programs.executor.frame import Frame
from phloem.programs.graph import StateGraph
from phloem.programs.nodes import Node

__all__ = ["Prefetch"]


class Prefetch:
    """Watches one program's way through its graph."""

    def __init__(
        self, graph: StateGraph, frame: Frame, cells: Mapping[str, types.CellType]
    ) -> None:
        self._graph, self._frame, self._cells = graph, frame, cells

    def before(self, node: Node) -> None:
        """Called before each node."""
