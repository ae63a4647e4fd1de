"""The program that runs a graph sent as JSON.

What lives here: the interpreter of `GraphSpec`, itself a phloem program, so its runs are
recorded, streamed, resumed and rewound like any other. What does not: the checks before
(`graph_models.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from phloem.errors import ProgramError, UnknownVariable
from phloem.programs.api.function import function
from phloem.programs.api.primitives import gen, retrieve, select
from phloem.programs.api.roles import assistant, system, user
from phloem.programs.api.state import State
from phloem.server.programs.graph_models import (
    AppendNode,
    BranchNode,
    GenNode,
    GraphSpec,
    NodeSpec,
    RetrieveNode,
    ReturnNode,
    SelectNode,
)

__all__ = ["MAX_STEPS", "NAME", "graph_program"]

NAME = "graph"
"""The name under which these runs are listed; no other program may have it."""

MAX_STEPS = 1000
"""Nodes a run may pass: a graph may loop, but not for ever."""

_ROLES = {"system": system, "user": user, "assistant": assistant}


@function(name=NAME, opaque=True)
def graph_program(s: State, graph: dict[str, Any], args: dict[str, Any]) -> Any:
    """Run a graph of appends, gens, selects, retrievals and branches."""
    spec = GraphSpec.model_validate(graph)
    variables: dict[str, Any] = dict(args)
    here: str | None = spec.start
    for _ in range(MAX_STEPS):
        if here is None:
            return variables
        node = spec.nodes[here]
        if isinstance(node, ReturnNode):
            return _search(here, node.value, variables)
        if isinstance(node, BranchNode):
            holds = _truth(_search(here, node.condition, variables))
            here = node.then if holds else node.otherwise
            continue
        _step(s, here, node, variables)
        here = node.next
    raise ProgramError(
        f"the graph passed {MAX_STEPS} nodes without an end",
        hint="give its loop a condition that comes true",
    )


def _step(s: State, name: str, node: NodeSpec, variables: dict[str, Any]) -> None:
    if isinstance(node, AppendNode):
        s += _in_role(node.role, _text(name, node, variables))
    elif isinstance(node, GenNode):
        sampling = node.model_dump(
            include={"max_tokens", "temperature", "top_p", "stop"}, exclude_none=True
        )
        step = gen(node.name, regex=node.regex, schema=node.json_schema, **sampling)
        s += _in_role(node.role, step)
        variables[node.name] = s[node.name]
    elif isinstance(node, SelectNode):
        s += _in_role(node.role, select(node.name, node.choices))
        variables[node.name] = s[node.name]
    elif isinstance(node, RetrieveNode):
        query = _search(name, node.query, variables)
        if not isinstance(query, str):
            raise ProgramError(
                f"node {name!r}: the query {node.query!r} gives {json.dumps(query)[:80]}, no text",
                hint="name a variable that holds text",
            )
        hits = retrieve(node.name, query, index=node.index, k=node.k)
        variables[node.name] = [hit.to_json() for hit in hits]


def _in_role(role: str | None, value: Any) -> Any:
    return value if role is None else _ROLES[role](value)


def _text(name: str, node: AppendNode, variables: Mapping[str, Any]) -> str:
    parts = [node.text] if isinstance(node.text, str) else node.text
    return "".join(
        part if isinstance(part, str) else _said(name, part.value, variables) for part in parts
    )


def _said(name: str, query: str, variables: Mapping[str, Any]) -> str:
    """A value as text. Raises `UnknownVariable` for nothing, which is what JMESPath gives for a
    name that is not set."""
    value = _search(name, query, variables)
    if value is None:
        raise UnknownVariable(
            f"node {name!r}: {query!r} gives nothing to append",
            hint=f"set so far: {', '.join(map(repr, variables)) or 'none'}; "
            f"{query} || 'text' gives another text in its place",
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _search(name: str, query: str, variables: Mapping[str, Any]) -> Any:
    try:
        return jmespath.search(query, variables)
    except (JMESPathError, ValueError, RecursionError) as error:  # a slice's step of 0: the second
        raise ProgramError(
            f"node {name!r}: the expression {query!r} fails: {error}",
            hint="the variables are the graph's args and what its steps have set",
        ) from None


def _truth(value: Any) -> bool:
    """JMESPath's rule: false, null and everything empty are false; 0 is true."""
    if isinstance(value, str | list | dict):
        return len(value) > 0
    return value is not None and value is not False
