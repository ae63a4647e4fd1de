"""Where the nodes and edges of a state graph are drawn.

What lives here: a layered layout, from ids and edges to coordinates. What does not: what a node
means (`graph.py`) and SVG (templates/graph.svg).

The steps are those of Sugiyama, Tagawa and Toda (1981), each in its plainest form: edges that
close a loop are set aside, a node's layer is its longest way from the entry, long edges get a
point in every layer between, layers are ordered by the mean place of their neighbours, and
places are evened out under a least distance. Loops run back along the right margin.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["HEIGHT", "WIDTH", "Layout", "Placed", "Route", "lay_out"]

WIDTH, HEIGHT = 196, 44
"""Size of a node."""
GAP_X, GAP_Y, MARGIN = 28, 34, 14
_POINT = 20
"""Width that a passing edge takes in a layer."""
_ASIDE = 52
"""How far from a node's middle a loop leaves and enters."""
SWEEPS = 6

Edge = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Placed:
    """A node and its upper left corner."""

    id: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Route:
    """An edge as an SVG path, with its label and where that stands."""

    source: str
    target: str
    label: str
    path: str
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing of `width` by `height`."""

    nodes: tuple[Placed, ...]
    routes: tuple[Route, ...]
    width: float
    height: float


def lay_out(entry: str, nodes: Sequence[str], edges: Sequence[Edge]) -> Layout:
    """Places for `nodes`, the entry at the top. Edges to unknown nodes are left out."""
    known = set(nodes)
    edges = [edge for edge in edges if edge[0] in known and edge[1] in known]
    back = _closing(entry, nodes, edges)
    forward = [edge for edge in edges if edge not in back]
    ranks = _ranks(nodes, forward)
    chains, layers, links = _layers(nodes, forward, ranks)
    _order(layers, links)
    centers = _centers(layers, links)
    left = min(centers.values(), default=0.0) - WIDTH / 2 - MARGIN
    x = {name: center - left for name, center in centers.items()}
    placed = tuple(Placed(name, x[name] - WIDTH / 2, _top(ranks[name])) for name in nodes)
    right = max((node.x + WIDTH for node in placed), default=0.0)
    routes = [_down(edge, chain, x, ranks) for edge, chain in chains]
    routes += [_up(edge, at, x, ranks, right) for at, edge in enumerate(back)]
    width = right + MARGIN + (16 * len(back) + 6 if back else 0)
    height = _top(max(ranks.values(), default=0)) + HEIGHT + MARGIN
    return Layout(placed, tuple(routes), width, height)


def _top(rank: int) -> float:
    return MARGIN + rank * (HEIGHT + GAP_Y)


def _closing(entry: str, nodes: Sequence[str], edges: Sequence[Edge]) -> list[Edge]:
    """The edges that lead back to a node on the way to their source."""
    leaving: dict[str, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge[0], []).append(edge)
    found: list[Edge] = []
    state: dict[str, bool] = {}  # True while on the way
    for root in (entry, *nodes):
        if root in state:
            continue
        state[root] = True
        stack = [(root, iter(leaving.get(root, ())))]
        while stack:
            name, rest = stack[-1]
            way = next(rest, None)
            if way is None:
                state[name] = False
                stack.pop()
            elif state.get(way[1]):
                found.append(way)
            elif way[1] not in state:
                state[way[1]] = True
                stack.append((way[1], iter(leaving.get(way[1], ()))))
    return found


def _ranks(nodes: Sequence[str], forward: Sequence[Edge]) -> dict[str, int]:
    """Each node's longest way from where nothing leads to (Kahn's algorithm)."""
    ranks = dict.fromkeys(nodes, 0)
    waiting = dict.fromkeys(nodes, 0)
    leaving: dict[str, list[str]] = {}
    for source, target, _ in forward:
        waiting[target] += 1
        leaving.setdefault(source, []).append(target)
    ready = [name for name in nodes if waiting[name] == 0]
    while ready:
        name = ready.pop()
        for target in leaving.get(name, ()):
            ranks[target] = max(ranks[target], ranks[name] + 1)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return ranks


_Links = dict[str, list[str]]


def _layers(
    nodes: Sequence[str], forward: Sequence[Edge], ranks: Mapping[str, int]
) -> tuple[list[tuple[Edge, list[str]]], list[list[str]], _Links]:
    """The edges as chains with a point in each layer they pass, all layers, and who is linked."""
    layers: list[list[str]] = [[] for _ in range(max(ranks.values(), default=0) + 1)]
    for name in nodes:
        layers[ranks[name]].append(name)
    links: _Links = {}
    chains = []
    for number, edge in enumerate(forward):
        source, target, _ = edge
        chain = [source]
        for rank in range(ranks[source] + 1, ranks[target]):
            point = f"\0{number}:{rank}"
            layers[rank].append(point)
            chain.append(point)
        chain.append(target)
        for above, below in itertools.pairwise(chain):
            links.setdefault(above, []).append(below)
            links.setdefault(below, []).append(above)
        chains.append((edge, chain))
    return chains, layers, links


def _order(layers: list[list[str]], links: _Links) -> None:
    """Sort each layer by the mean place of its neighbours in the layer before, then after."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        run = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        for at in run:
            fixed = {name: place for place, name in enumerate(layers[at - 1 if down else at + 1])}
            means = {}
            for place, name in enumerate(layers[at]):
                near = [fixed[other] for other in links.get(name, ()) if other in fixed]
                means[name] = sum(near) / len(near) if near else place
            layers[at].sort(key=means.__getitem__)


def _centers(layers: Sequence[Sequence[str]], links: _Links) -> dict[str, float]:
    """The middle of each node: in turns under the mean of its neighbours above and over that of
    those below, never too near the next one."""
    x: dict[str, float] = {}
    for layer in layers:
        _spread(layer, dict.fromkeys(layer, 0.0), x)
    at = {name: number for number, layer in enumerate(layers) for name in layer}
    for sweep in range(SWEEPS):
        side = -1 if sweep % 2 == 0 else 1
        for layer in layers if side < 0 else list(reversed(layers)):
            wanted = {}
            for name in layer:
                near = [x[o] for o in links.get(name, ()) if at[o] - at[name] == side]
                wanted[name] = sum(near) / len(near) if near else x[name]
            _spread(layer, wanted, x)
    return x


def _spread(layer: Sequence[str], wanted: Mapping[str, float], x: dict[str, float]) -> None:
    """Put a layer as near to `wanted` as the distances permit: from the left, then the overshoot
    shared by the whole layer."""
    at: list[float] = []
    for place, name in enumerate(layer):
        least = at[-1] + _distance(layer[place - 1], name) if at else wanted[name]
        at.append(max(wanted[name], least))
    shift = sum(wanted[name] - at[place] for place, name in enumerate(layer)) / max(1, len(layer))
    for place, name in enumerate(layer):
        x[name] = at[place] + shift


def _distance(left: str, right: str) -> float:
    return (_wide(left) + _wide(right)) / 2 + GAP_X


def _wide(name: str) -> float:
    return _POINT if name.startswith("\0") else WIDTH


def _down(
    edge: Edge, chain: Sequence[str], x: Mapping[str, float], ranks: Mapping[str, int]
) -> Route:
    """A curve through the middles of all points of a chain."""
    start = ranks[edge[0]]
    points = [(x[edge[0]], _top(start) + HEIGHT)]
    for at, name in enumerate(chain[1:-1], start + 1):
        points += [(x[name], _top(at)), (x[name], _top(at) + HEIGHT)]
    points.append((x[edge[1]], _top(ranks[edge[1]])))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        middle = (y1 + y2) / 2
        path += f" C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    label_x = points[0][0] + (points[1][0] - points[0][0]) * 0.35
    return Route(*edge, path, label_x, points[0][1] + 15)


def _up(
    edge: Edge, number: int, x: Mapping[str, float], ranks: Mapping[str, int], right: float
) -> Route:
    """Below the source, around the margin, and back into an earlier node from above: between
    layers there are only edges."""
    margin = right + 14 + 16 * number
    x1, y1 = x[edge[0]] + _ASIDE, _top(ranks[edge[0]]) + HEIGHT
    x2, y2 = x[edge[1]] + _ASIDE, _top(ranks[edge[1]])
    low, high = y1 + 10, y2 - 12
    path = (
        f"M{x1:.1f} {y1:.1f} V{low - 6:.1f} Q{x1:.1f} {low:.1f} {x1 + 6:.1f} {low:.1f}"
        f" H{margin - 6:.1f} Q{margin:.1f} {low:.1f} {margin:.1f} {low - 6:.1f}"
        f" V{high + 6:.1f} Q{margin:.1f} {high:.1f} {margin - 6:.1f} {high:.1f}"
        f" H{x2 + 6:.1f} Q{x2:.1f} {high:.1f} {x2:.1f} {high + 6:.1f} V{y2:.1f}"
    )
    return Route(*edge, path, x1 + 24, low + 11)
