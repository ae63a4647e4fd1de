"""The nodes and edges of a state graph: frozen data, one class per kind of node.

What lives here: what is known about each step before it runs. What does not: the graph as a
whole (`graph.py`), findings about it (`check.py`), or code that runs (`compiler/`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from phloem.grammar.spec import Constraint

__all__ = [
    "KINDS",
    "Append",
    "Branch",
    "Call",
    "Edge",
    "Fork",
    "Gen",
    "Join",
    "Loop",
    "Node",
    "Opaque",
    "Python",
    "Retrieve",
    "Return",
    "Select",
    "node_from_json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What all nodes share. `reads` and `writes` name variables of the program's function,
    `state_reads` variables of its state that are read by name, `scopes` those a scope sets."""

    kind: ClassVar[str] = "node"
    id: str
    file: str | None = None
    line: int | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    state_reads: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with the node's `kind`."""
        data: dict[str, Any] = {"kind": self.kind}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Constraint):
                value = value.to_json()
            data[item.name] = _listed(value)
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Node):
    """Text put into the session, in atoms: ("begin", role), ("text", constant text),
    ("end", role), or ("unknown", "") for what is only known at run time."""

    kind: ClassVar[str] = "append"
    atoms: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str | None:
        """The constant text without chat markup, or None if some is unknown."""
        if any(what == "unknown" for what, _ in self.atoms):
            return None
        return "".join(text for what, text in self.atoms if what == "text")

    @property
    def role(self) -> str | None:
        """The chat role of the first message that begins here, if any."""
        return next((role for what, role in self.atoms if what == "begin"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gen(Node):
    """A generation. `prefix` is the constant text right before it, `max_tokens` None if only
    known at run time or by default; `template` names the prompt of a value-style step."""

    kind: ClassVar[str] = "gen"
    name: str | None = None
    constraint: Constraint | None = None
    prefix: str = ""
    max_tokens: int | None = None
    template: str | None = None
    independent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Node):
    """A choice by scoring; `choices` is None where they are only known at run time."""

    kind: ClassVar[str] = "select"
    name: str | None = None
    choices: tuple[str, ...] | None = None
    prefix: str = ""
    template: str | None = None
    independent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieve(Node):
    """A retrieval. `query` is the source text of its query, `early` whether it may be started
    before its place because all it reads are variables and constants."""

    kind: ClassVar[str] = "retrieve"
    name: str | None = None
    query: str = ""
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Node):
    """The session splits, or a block of independent steps begins."""

    kind: ClassVar[str] = "fork"
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Branches come together, or a block of independent steps ends."""

    kind: ClassVar[str] = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Node):
    """Another program or a tool is called; `target` is its name."""

    kind: ClassVar[str] = "call"
    target: str = ""
    tool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Python(Node):
    """A run of plain statements; `source` is their text. `opaque` says why the compiler could
    not see into it although it may contain steps."""

    kind: ClassVar[str] = "python"
    source: str = ""
    opaque: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Node):
    """A condition; its edges are labelled "true" and "false"."""

    kind: ClassVar[str] = "branch"
    condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Node):
    """The head of a loop; its edges are labelled "next" (into the body) and "done"."""

    kind: ClassVar[str] = "loop"
    condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return(Node):
    """The end of the program; `value` is the source text of what it returns."""

    kind: ClassVar[str] = "return"
    value: str = "None"


KINDS: dict[str, type[Node]] = {
    cls.kind: cls
    for cls in (
        Append, Gen, Select, Retrieve, Fork, Join, Call, Python, Branch, Loop, Return,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """From one node to the next, taken when the node's outcome is `label`."""

    source: str
    target: str
    label: str = "next"


@dataclass(frozen=True, slots=True)
class Opaque:
    """A place that the compiler could not see into, and why."""

    reason: str
    line: int | None
    node: str | None = None


def node_from_json(data: dict[str, Any]) -> Node:
    """The inverse of `Node.to_json`."""
    values = {name: _tupled(value) for name, value in data.items() if name != "kind"}
    if values.get("constraint") is not None:
        values["constraint"] = Constraint.from_json(values["constraint"])
    return KINDS[data["kind"]](**values)


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value
