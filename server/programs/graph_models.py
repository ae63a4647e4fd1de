"""Graphs that clients send as JSON: their nodes, and what is checked before one runs.

What lives here: the pydantic models and the checks. What does not: running
(`graph_program.py`).

There is no Python in such a graph. Values are taken and conditions are decided by JMESPath
(https://jmespath.org), a query language that always ends and reaches nothing but the
variables: the graph's `args` and what its steps have set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from phloem.server.openai.fields import Count, Number

__all__ = ["GraphSpec", "NodeSpec"]

MAX_NODES = 200

Id = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


def _query(text: str) -> str:
    try:
        jmespath.compile(text)
    except JMESPathError as error:
        raise ValueError(f"not a JMESPath expression: {error}") from None
    except RecursionError:
        raise ValueError("a JMESPath expression nested too deep") from None
    return text


Words = Annotated[str, Field(min_length=1)]
Query = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_query)]


class Strictly(BaseModel):
    """A part of a graph; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ValuePart(Strictly):
    """A value put into text: strings as they are, anything else as JSON."""

    value: Query


TextSpec = str | list[str | ValuePart]


class AppendNode(Strictly):
    """Text at the end of the session; with a role, as a whole chat message."""

    type: Literal["append"]
    text: TextSpec
    role: Literal["system", "user", "assistant"] | None = None
    next: Id | None = None


class GenNode(Strictly):
    """Generate and keep the value as variable `name`; inside a message of `role`."""

    type: Literal["gen"]
    name: Id
    role: Literal["assistant"] | None = None
    max_tokens: Count | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    stop: Annotated[list[Words], Field(max_length=16)] | None = None
    regex: str | None = None
    json_schema: dict[str, Any] | None = None
    next: Id | None = None

    @model_validator(mode="after")
    def _one_constraint(self) -> Self:
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema exclude each other")
        return self


class SelectNode(Strictly):
    """Choose one of the texts and keep it as variable `name`."""

    type: Literal["select"]
    name: Id
    role: Literal["assistant"] | None = None
    choices: Annotated[list[Words], Field(min_length=1)]
    next: Id | None = None


class RetrieveNode(Strictly):
    """Search and keep the hits as variable `name`."""

    type: Literal["retrieve"]
    name: Id
    query: Query
    index: str = "default"
    k: Annotated[int, Strict(), Field(ge=1, le=100)] = 5
    next: Id | None = None


class BranchNode(Strictly):
    """Go on at `then` if the condition holds (JMESPath's truth), else at `otherwise`."""

    type: Literal["branch"]
    condition: Query
    then: Id
    otherwise: Id | None = None


class ReturnNode(Strictly):
    """End with this value."""

    type: Literal["return"]
    value: Query


NodeSpec = Annotated[
    AppendNode | GenNode | SelectNode | RetrieveNode | BranchNode | ReturnNode,
    Field(discriminator="type"),
]


class GraphSpec(Strictly):
    """A graph: nodes by id, and where to begin. A node without `next` is an end."""

    start: Id
    nodes: Annotated[dict[Id, NodeSpec], Field(min_length=1, max_length=MAX_NODES)]

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        for source, target in [("start", self.start), *self._edges()]:
            if target not in self.nodes:
                raise ValueError(f"{source} leads to {target!r}, which is no node")
        reached, todo = {self.start}, [self.start]
        while todo:
            here = todo.pop()
            for target in _exits(self.nodes[here]):
                if target not in reached:
                    reached.add(target)
                    todo.append(target)
        unreached = [name for name in self.nodes if name not in reached]
        if unreached:
            raise ValueError(f"nothing leads to {', '.join(unreached)}")
        return self

    def _edges(self) -> Iterator[tuple[str, str]]:
        for name, node in self.nodes.items():
            for target in _exits(node):
                yield f"node {name!r}", target


def _exits(node: NodeSpec) -> list[str]:
    if isinstance(node, BranchNode):
        return [one for one in (node.then, node.otherwise) if one is not None]
    if isinstance(node, ReturnNode) or node.next is None:
        return []
    return [node.next]
