"""What a graph tells of the nodes ahead of each node.

What lives here: which retrievals are certain to run, and how soon the session is used again. What
does not: acting on it (`executor/machine.py`).
"""

from __future__ import annotations

from collections import deque

from phloem.programs import nodes as n
from phloem.programs.graph import StateGraph

__all__ = ["next_use", "retrievals"]

_OVER = (n.Append, n.Gen, n.Select, n.Retrieve, n.Fork, n.Join)
"""Nodes that a retrieval may be started before: none is a tool or a run of the user's code."""


def retrievals(graph: StateGraph) -> dict[str, tuple[str, ...]]:
    """For each node, the retrievals behind it that may be started before it.

    They follow it on the only way there is, over steps and appends alone, and read no variable
    that is written on the way.
    """
    return {identity: tuple(_certain(graph, node)) for identity, node in graph.nodes.items()}


def _certain(graph: StateGraph, start: n.Node) -> list[str]:
    found: list[str] = []
    written: set[str] = set()
    seen = {start.id}
    node = start
    while isinstance(node, _OVER):
        written |= set(node.writes)
        following = graph.successors(node.id)
        if len(following) != 1 or following[0].target in seen:
            break
        node = graph.nodes[following[0].target]
        seen.add(node.id)
        if isinstance(node, n.Retrieve) and node.early and not written & set(node.reads):
            found.append(node.id)
    return found


def next_use(graph: StateGraph) -> dict[str, int | None]:
    """For each node, how many nodes other than appends lie before the nearest next step of the
    session; None if no step can follow."""
    entering: dict[str, list[str]] = {}
    for edge in graph.edges:
        entering.setdefault(edge.target, []).append(edge.source)
    distance: dict[str, int | None] = dict.fromkeys(graph.nodes)
    # Distances to the nearest step, from all steps backwards (0-1 breadth-first search).
    reach: dict[str, int] = {}
    queue: deque[tuple[str, int]] = deque(
        (node.id, 0) for node in graph.nodes.values() if isinstance(node, n.Gen | n.Select)
    )
    while queue:
        identity, steps = queue.popleft()
        for before in entering.get(identity, ()):
            if before in reach and reach[before] <= steps:
                continue
            reach[before] = steps
            free = isinstance(graph.nodes[before], n.Append)
            entry = (before, steps if free else steps + 1)
            queue.appendleft(entry) if free else queue.append(entry)
    distance.update(reach)
    return distance
