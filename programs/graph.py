"""The state graph of a program: nodes, labelled edges, and what was left opaque.

What lives here: `StateGraph` and its JSON. What does not: making one (`compiler/`), drawing
(`drawing.py`), findings (`check.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phloem.errors import CompileError
from phloem.programs import check, drawing, registry
from phloem.programs.nodes import Append, Edge, Node, Opaque, Python, node_from_json

__all__ = ["StateGraph"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StateGraph:
    """What a program does, as data. `entry` is the id of the first node."""

    program: str
    entry: str
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    parameters: tuple[str, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    problems: tuple[check.Finding, ...] = field(default=(), compare=False)
    """What the compiler already found wrong; `check()` adds to it."""

    def successors(self, node: str) -> tuple[Edge, ...]:
        """The edges that leave `node`."""
        return tuple(edge for edge in self.edges if edge.source == node)

    def constant_prefix(self) -> tuple[tuple[str, str], ...]:
        """What every run begins with and is known before any run, as atoms of `Append`."""
        atoms: list[tuple[str, str]] = []
        node: Node | None = self.nodes[self.entry]
        seen = 0
        while isinstance(node, Append) and seen < len(self.nodes):
            for atom in node.atoms:
                if atom[0] == "unknown":
                    return tuple(atoms)
                atoms.append(atom)
            following = self.successors(node.id)
            node = self.nodes[following[0].target] if len(following) == 1 else None
            seen += 1
        return tuple(atoms)

    def check(self) -> list[check.Finding]:
        """Everything that is wrong, or looks wrong, before any run, in source order."""
        analyser = registry.default("analyser")
        found = [*self.problems, *check.find(self.entry, self.nodes, self.edges, analyser)]
        return sorted(found, key=lambda finding: (finding.line or 0, finding.code))

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return drawing.to_mermaid(self.entry, self.nodes, self.edges)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON.

        Raises `CompileError` if there is a `Python` node: its statements live in the program's
        module and mean nothing elsewhere.
        """
        for node in self.nodes.values():
            if isinstance(node, Python):
                raise CompileError(
                    f"the graph of {self.program!r} has a Python node ({node.id}, line "
                    f"{node.line}), which JSON can't carry",
                    hint="only graphs made of steps alone can be exported; "
                    "to_mermaid() draws any graph",
                )
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """The same data for any graph, for viewers; `from_json` refuses Python nodes."""
        return {
            "format": FORMAT,
            "program": self.program,
            "entry": self.entry,
            "parameters": list(self.parameters),
            "nodes": [node.to_json() for node in self.nodes.values()],
            "edges": [[edge.source, edge.target, edge.label] for edge in self.edges],
            "opaque": [[item.reason, item.line, item.node] for item in self.opaque],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StateGraph:
        """The inverse of `to_json`. Raises `CompileError` for what it could not have written."""
        if data.get("format") != FORMAT:
            raise CompileError(
                f"this graph has format {data.get('format')!r}, not {FORMAT}",
                hint="it was written by another version of phloem",
            )
        nodes = {item["id"]: node_from_json(item) for item in data["nodes"]}
        python = [node.id for node in nodes.values() if isinstance(node, Python)]
        if python:
            raise CompileError(
                f"the graph has Python nodes: {', '.join(python)}",
                hint="their statements are not part of the JSON",
            )
        return cls(
            program=data["program"],
            entry=data["entry"],
            nodes=nodes,
            edges=tuple(Edge(*edge) for edge in data["edges"]),
            parameters=tuple(data["parameters"]),
            opaque=tuple(Opaque(*item) for item in data["opaque"]),
        )
