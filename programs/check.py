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
    P010 error    an argument that a step can't take
    P011 error    a step that is never added to the state
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from phloem.grammar.spec import Analyser
from phloem.programs import nodes as n
from phloem.programs.protocol import SamplingParams

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
    analyser: Analyser,
) -> list[Finding]:
    """Findings that follow from the graph, and from what the analyser knows of constraints."""
    return [
        *_unreachable(entry, nodes, edges),
        *_duplicates(nodes, edges),
        *_empty(nodes),
        *_unset(nodes, edges),
        *_opaque(nodes),
        *(finding for node in nodes.values() for finding in _unfit(node, analyser)),
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


def _unset(nodes: Mapping[str, n.Node], edges: Sequence[n.Edge]) -> list[Finding]:
    """Variables of the state that are read where no step can have set them.

    Only where every way to set one can be seen: no opaque parts, no joins, no calls.
    """
    unseen = (n.Python, n.Join, n.Call, n.Fork)
    if any(isinstance(node, unseen) and _may_set(node) for node in nodes.values()):
        return []
    found = []
    for node in nodes.values():
        before = {
            getattr(other, "name", None)
            for other in nodes.values()
            if other.id != node.id and node.id in _reach(other.id, edges)
        }
        before |= {scope for other in nodes.values() for scope in other.scopes}
        found += [
            _at(
                node,
                "P003",
                "error",
                f"the variable {name!r} is read before any step sets it",
                "set it first: gen, select, retrieve or set_var",
            )
            for name in node.state_reads
            if name not in before
        ]
    return found


def _may_set(node: n.Node) -> bool:
    return not isinstance(node, n.Python) or node.opaque is not None or "set_var" in node.source


def _opaque(nodes: Mapping[str, n.Node]) -> list[Finding]:
    return [
        _at(node, "P007", "warning", node.opaque, "steps in it run, and are not nodes")
        for node in nodes.values()
        if isinstance(node, n.Python) and node.opaque is not None
    ]


CHARS_PER_TOKEN = 16
"""More characters than any ordinary token has, for limits where tokens can't be counted."""


def _unfit(node: n.Node, analyser: Analyser) -> list[Finding]:
    if not isinstance(node, n.Gen) or node.constraint is None:
        return []
    bounds = analyser.bounds(node.constraint)
    if bounds.empty:
        return [_at(node, "P009", "error", "no text satisfies the constraint", "loosen it")]
    least = bounds.min_tokens
    if least is None and bounds.min_chars is not None:
        least = -(-bounds.min_chars // CHARS_PER_TOKEN)
    limit = node.max_tokens if node.max_tokens is not None else SamplingParams().max_tokens
    if least is None or least <= limit:
        return []
    return [
        _at(
            node,
            "P004",
            "error",
            f"the constraint needs at least {least} tokens and max_tokens is {limit}",
            "raise max_tokens",
        )
    ]


def _empty(nodes: Mapping[str, n.Node]) -> list[Finding]:
    return [
        _at(
            node,
            "P005",
            "error",
            f"the choice {node.name!r} has {'an empty text' if node.choices else 'no choices'}",
            "list texts",
        )
        for node in nodes.values()
        if isinstance(node, n.Select) and (node.choices == () or "" in (node.choices or ()))
    ]
