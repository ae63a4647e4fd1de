"""What can be found wrong with a program before it runs, as a linter finds it.

What lives here: `Finding` and the checks that need only the graph. What does not: checks that
the compiler makes as it reads the source (bad regex, bad schema), which it reports as findings
of the same kind.

    P001 error    a constraint can't be built (regex, schema, choices)
    P002 warning  two steps set the same variable
    P003 error    a variable of the state is read before any step sets it
    P004 error    a constraint can't fit in max_tokens
    P005 error    a choice without choices
    P006 warning  code that can't be reached
    P007 warning  a part the compiler could not see into
    P008 error    a value-style step names no template
    P009 error    a constraint that no text satisfies
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from phloem.programs import nodes as n

__all__ = ["Finding", "find"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its code, where it is, and what to do about it."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    hint: str
    file: str | None = None
    line: int | None = None
    node: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        return f"{place}{self.severity} {self.code}: {self.message} ({self.hint})"

    def to_github(self) -> str:
        """As a workflow command that puts the finding on the source line in GitHub."""
        message = f"{self.message} ({self.hint})".replace("%", "%25").replace("\n", "%0A")
        return f"::{self.severity} file={self.file},line={self.line},title={self.code}::{message}"


def find(
    entry: str,
    nodes: Mapping[str, n.Node],
    edges: Sequence[n.Edge],
    parameters: Sequence[str],  # noqa: ARG001 - part of what a check may know
) -> list[Finding]:
    """Findings that follow from the graph alone."""
    return [
        *_unreachable(entry, nodes, edges),
        *_duplicates(nodes, edges),
        *_empty(nodes),
    ]


def _at(
    node: n.Node, code: str, severity: Literal["error", "warning"], text: str, hint: str
) -> Finding:
    return Finding(code, severity, text, hint, node.file, node.line, node.id)


def _unreachable(entry: str, nodes: Mapping[str, n.Node], edges: Sequence[n.Edge]) -> list[Finding]:
    reached = _reach(entry, edges)
    entered = {edge.target for edge in edges}
    return [
        _at(node, "P006", "warning", "this code can't be reached", "remove it")
        for node in nodes.values()
        if node.id not in reached and node.id not in entered and node.kind != "return"
    ]


def _reach(start: str, edges: Sequence[n.Edge]) -> set[str]:
    following: dict[str, list[str]] = {}
    for edge in edges:
        following.setdefault(edge.source, []).append(edge.target)
    reached, todo = {start}, [start]
    while todo:
        for target in following.get(todo.pop(), ()):
            if target not in reached:
                reached.add(target)
                todo.append(target)
    return reached


def _duplicates(nodes: Mapping[str, n.Node], edges: Sequence[n.Edge]) -> list[Finding]:
    """Two steps that set one name and can both happen in one run: the first value is lost."""
    first: dict[str, list[n.Node]] = {}
    found = []
    for node in nodes.values():
        name = getattr(node, "name", None)
        if name is None:
            continue
        for earlier in first.get(name, ()):
            if node.id in _reach(earlier.id, edges):
                found.append(
                    _at(
                        node,
                        "P002",
                        "warning",
                        f"the variable {name!r} is set on line {earlier.line} already",
                        "give the steps different names, or read the first before the second",
                    )
                )
                break
        first.setdefault(name, []).append(node)
    return found


def _empty(nodes: Mapping[str, n.Node]) -> list[Finding]:
    return [
        _at(node, "P005", "error", f"the choice {node.name!r} has no choices", "list some")
        for node in nodes.values()
        if isinstance(node, n.Select) and node.choices == ()
    ]
