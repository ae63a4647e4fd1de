"""A run's state graph as it is drawn: few nodes, each with what happened there.

What lives here: leaving out what only marks up text, labels, and the taken path. What does not:
places (`layout.py`) and SVG (templates/graph.svg).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.trace.record import RunTrace
from phloem.server.viewer.layout import HEIGHT, WIDTH, Edge, lay_out

__all__ = ["DrawnEdge", "DrawnNode", "GraphView", "draw", "is_markup"]

LABEL = 23
"""Characters that fit into a node."""
_Nodes = dict[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node. `count` says how often it was passed; `title` is all that is known of it."""

    id: str
    kind: str
    label: str
    detail: str
    title: str
    x: float
    y: float
    count: int
    failed: bool


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """An edge. `taken`: the run has gone this way."""

    path: str
    label: str
    x: float
    y: float
    taken: bool


@dataclass(frozen=True, slots=True)
class GraphView:
    """A drawing, nodes in the order of the source. `members` are ids of all nodes of the program
    by the drawn node that stands for them."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    width: float
    height: float
    members: Mapping[str, str]
    node_width: int = WIDTH
    node_height: int = HEIGHT


def draw(run: RunTrace) -> GraphView | None:
    """The graph of a run's program; None where it is not known."""
    if not run.graph or not run.graph.get("nodes"):
        return None
    nodes: _Nodes = {node["id"]: node for node in run.graph["nodes"]}
    telling = {name for name, node in nodes.items() if not is_markup(node)}
    edges: list[Edge] = [(edge[0], edge[1], edge[2]) for edge in run.graph["edges"]]
    members = {name: name for name in nodes}
    entry, edges = _without_markup(run.graph["entry"], nodes, edges, members)
    edges = _texts_joined(nodes, edges, members)
    failed = members.get(run.error.node or "") if run.error else None
    counts, decided = _passes(run.events, {name: members[name] for name in telling})
    taken = _taken(edges, counts, decided, failed)
    layout = lay_out(members[entry], list(nodes), edges)
    drawn = tuple(
        DrawnNode(
            place.id, node["kind"], _label(node), _detail(node), _title(node), place.x, place.y,
            counts[place.id], place.id == failed,
        )
        for place in layout.nodes
        for node in (nodes[place.id],)
    )  # fmt: skip
    lines = tuple(
        DrawnEdge(
            route.path, "" if route.label == "next" and not _splits(nodes, route.source)
            else route.label, route.label_x, route.label_y,
            (route.source, route.target, route.label) in taken,
        )
        for route in layout.routes
    )  # fmt: skip
    return GraphView(drawn, lines, layout.width, layout.height, members)


def _splits(nodes: _Nodes, name: str) -> bool:
    return nodes[name]["kind"] in {"branch", "loop"}


def _without_markup(
    entry: str, nodes: _Nodes, edges: list[Edge], members: dict[str, str]
) -> tuple[str, list[Edge]]:
    """Leave out what only marks up; the next node stands for it."""
    for name, node in list(nodes.items()):
        leaving = [edge for edge in edges if edge[0] == name]
        if len(leaving) != 1 or leaving[0][1] == name or not is_markup(node):
            continue
        target = leaving[0][1]
        edges = [(a, target if b == name else b, label) for a, b, label in edges if a != name]
        entry = target if entry == name else entry
        del nodes[name]
        for member, stands in members.items():
            if stands == name:
                members[member] = target
    return entry, edges


def is_markup(node: Mapping[str, Any]) -> bool:
    """Whether a node only opens or closes a message, or begins a loop's iterator."""
    if node["kind"] == "append":
        return all(atom[0] in {"begin", "end"} for atom in node["atoms"])
    return bool(node["kind"] == "python" and str(node.get("source", "")).startswith("_"))


def _texts_joined(nodes: _Nodes, edges: list[Edge], members: dict[str, str]) -> list[Edge]:
    """Make one node of texts that follow each other without a way in between."""
    for name in list(nodes):
        if name not in nodes or nodes[name]["kind"] != "append":
            continue
        while True:
            leaving = [edge for edge in edges if edge[0] == name]
            if len(leaving) != 1:
                break
            second = leaving[0][1]
            arriving = [edge for edge in edges if edge[1] == second]
            if second == name or nodes[second]["kind"] != "append" or len(arriving) != 1:
                break
            nodes[name] = {
                **nodes[name], "atoms": [*nodes[name]["atoms"], *nodes[second]["atoms"]]
            }  # fmt: skip
            del nodes[second]
            edges = [(name if a == second else a, b, label)
                     for a, b, label in edges if b != second]  # fmt: skip
            for member, stands in members.items():
                if stands == second:
                    members[member] = name
    return edges


def _passes(
    events: Sequence[Mapping[str, Any]], members: Mapping[str, str]
) -> tuple[Counter[str], set[tuple[str, str]]]:
    """How often each drawn node was passed, on whatever branch, and which ways were decided on."""
    counts: Counter[str] = Counter()
    decided: set[tuple[str, str]] = set()
    at: dict[str, tuple[str, bool]] = {}  # where a branch is, and whether it is through there
    for event in events:
        name = members.get(event.get("node") or "")
        if name is None or event["type"] in {"run_failed", "run_finished", "token"}:
            continue
        here, through = at.get(event["path"], ("", True))
        if here != name or (through and event["type"] in _BEGIN):
            counts[name] += 1
            through = False
        at[event["path"]] = (name, through or event["type"] in _END)
        if event["type"] == "branch_taken":
            decided.add((name, event["taken"]))
    return counts, decided


_BEGIN = {"step_started", "branch_taken", "ran"}
_END = {"step_finished", "step_failed", "retrieved", "branch_taken", "ran"}


def _taken(
    edges: Sequence[Edge], counts: Counter[str], decided: set[tuple[str, str]], failed: str | None
) -> set[Edge]:
    """The edges that the run went along: those decided on, and the only one from a node that was
    passed. Nodes that leave no event count as passed where such an edge leads."""
    ways = Counter(edge[0] for edge in edges)
    taken: set[Edge] = set()
    while True:
        fresh = {
            edge
            for edge in edges
            if edge not in taken
            and ((edge[0], edge[2]) in decided
                 or (ways[edge[0]] == 1 and counts[edge[0]] > (edge[0] == failed)))
        }  # fmt: skip
        if not fresh:
            return taken
        taken |= fresh
        for _, target, _ in fresh:
            counts[target] = counts[target] or 1


def _label(node: Mapping[str, Any]) -> str:
    """The first line of a node."""
    match node["kind"]:
        case "gen" | "select" | "retrieve":
            text = node.get("name") or node["kind"]
        case "append":
            roles = [atom[1] for atom in node["atoms"] if atom[0] == "begin"]
            text = " + ".join(dict.fromkeys(roles)) or "text"
        case "branch" | "loop":
            text = node["condition"]
        case "call":
            text = f"{node['target']}()"
        case "python":
            text = str(node.get("source") or "…").strip().split("\n", 1)[0]
        case "return":
            text = f"return {node.get('value') or ''}"
        case kind:
            text = kind
    text = " ".join(str(text).split())
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _detail(node: Mapping[str, Any]) -> str:
    """The second line: kind, constraint, line."""
    parts = [node["kind"] if node["kind"] != "append" else "text"]
    if node.get("constraint"):
        parts.append(node["constraint"]["kind"])
    if node.get("choices"):
        parts.append(f"{len(node['choices'])} choices")
    if node.get("line"):
        parts.append(f"line {node['line']}")
    return " · ".join(parts)


def _title(node: Mapping[str, Any]) -> str:
    """All of it, for who stays on a node."""
    texts = [atom[1] for atom in node.get("atoms") or () if atom[0] == "text" and atom[1]]
    what = (
        node.get("condition") or node.get("source") or node.get("query") or node.get("target")
        or node.get("name") or "\n".join(texts) or node["kind"]
    )  # fmt: skip
    return f"{node['kind']} ({node['id']})\n{what}"
