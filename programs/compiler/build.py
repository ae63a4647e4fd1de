"""From a function to its graph and the code of each node.

What lives here: `compile_function`, `Compiled` and the naming of nodes. What does not: the
lowering (`lower.py`), the code (`factory.py`) or running it (`executor/machine.py`).
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phloem.grammar.spec import Constraint
from phloem.programs import nodes as n
from phloem.programs.check import Finding
from phloem.programs.compiler import ahead, reads
from phloem.programs.compiler.drafts import TEMPS, Draft, place
from phloem.programs.compiler.factory import is_async, make_factory
from phloem.programs.compiler.lower import Lowering
from phloem.programs.compiler.scope import loaded, stored
from phloem.programs.compiler.source import FunctionSource, NoSource, read_source, written
from phloem.programs.graph import StateGraph

__all__ = ["Compiled", "Op", "compile_function"]


@dataclass(frozen=True, slots=True)
class Op:
    """How a node runs: which fragment, what its value means, and where each outcome leads.

    `reads` are the variables and `temps` the temporaries that the fragment reads. `early` are
    the retrievals (node, fragment that gives the effect) that may be started before this node,
    and `next_use` the nodes between this one and the next step of the session.
    """

    node: str
    fragment: int
    role: str
    exits: Mapping[str, str]
    is_async: bool
    reads: tuple[str, ...]
    temps: tuple[int, ...]
    early: tuple[tuple[str, int], ...] = ()
    next_use: int | None = None


@dataclass(frozen=True)
class Compiled:
    """A compiled function. `factory` is None if it is one opaque node that calls `function`."""

    function: types.FunctionType
    graph: StateGraph
    ops: Mapping[str, Op]
    factory: Callable[..., Any] | None
    temps: int = 0

    @property
    def captured(self) -> frozenset[str]:
        """Variables that functions inside the program read, whenever they are called."""
        return frozenset(self.function.__code__.co_cellvars)

    @functools.cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints of the program's steps, as far as they are known before a run."""
        found = [node.constraint for node in self.graph.nodes.values() if isinstance(node, n.Gen)]
        return tuple(dict.fromkeys(constraint for constraint in found if constraint is not None))


_NAMES = {"locals", "vars", "dir", "eval", "exec", "super", "_getframe", "currentframe"}


def compile_function(
    function: types.FunctionType, state: str | None, name: str, *, opaque: str | None = None
) -> Compiled:
    """Compile `function`; `state` is its state parameter's name (None: value style).

    Never fails on valid Python: what can't be compiled is one opaque node, and the graph says
    why. `opaque` gives such a reason beforehand.
    """
    try:
        if opaque is not None:
            raise NoSource(opaque)
        source = read_source(function)
        _refuse(source)
    except NoSource as reason:
        return _opaque(function, name, str(reason))
    lowering = Lowering(source, state)
    drafts = lowering.lower()
    graph, ids = _graph(source, name, drafts, state)
    early = _early_drafts(drafts)
    plan = ahead.retrievals(graph)
    distance = ahead.next_use(graph)
    ops = {
        ids[index]: Op(
            ids[index],
            index,
            draft.role,
            {label: ids[target] for label, target in draft.exits.items()},
            is_async(draft),
            graph.nodes[ids[index]].reads,
            reads.temps_read(draft),
            tuple((node, early[node][0]) for node in plan[ids[index]]),
            distance[ids[index]],
        )
        for index, draft in enumerate(drafts)
    }
    fragments = [*drafts, *(draft for _, draft in early.values())]
    return Compiled(function, graph, ops, make_factory(source, fragments), lowering.builder.temp())


def _early_drafts(drafts: list[Draft]) -> dict[str, tuple[int, Draft]]:
    """For every retrieval that may be early: the fragment, after all others, of its effect."""
    found: dict[str, tuple[int, Draft]] = {}
    for draft, identity in zip(drafts, _ids(drafts), strict=True):
        if draft.early is not None:
            body: list[ast.stmt] = [place(ast.Return(draft.early), draft.early)]
            index = len(drafts) + len(found)
            found[identity] = (index, Draft("retrieve", draft.line, body, "return"))
    return found


def _refuse(source: FunctionSource) -> None:
    """Raise `NoSource` for what depends on being one function with one frame."""
    if "__class__" in source.function.__code__.co_freevars:
        raise NoSource("it uses super() or __class__")
    for node in ast.walk(source.tree):
        named = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
        if isinstance(node, ast.Name | ast.Attribute) and named in _NAMES:
            raise NoSource(f"it uses {named}, which looks at the function's own frame")
        if isinstance(named, str) and named.startswith("__") and not named.endswith("__"):
            raise NoSource(f"it uses the private name {named}")


def _opaque(function: types.FunctionType, name: str, reason: str) -> Compiled:
    line = written(function).co_firstlineno
    file = written(function).co_filename
    node = n.Python(id="python", file=file, line=line, source=f"{name}(...)", opaque=reason)
    graph = StateGraph(
        program=name,
        entry="python",
        nodes={"python": node},
        edges=(),
        parameters=tuple(inspect.signature(function).parameters),
        opaque=(n.Opaque(reason, line, "python"),),
    )
    return Compiled(function, graph, {}, None)


def _graph(
    source: FunctionSource, name: str, drafts: list[Draft], state: str | None
) -> tuple[StateGraph, list[str]]:
    ids = _ids(drafts)
    nodes = {}
    problems: list[Finding] = []
    for draft, identity in zip(drafts, ids, strict=True):
        nodes[identity] = _node(source, draft, identity, state)
        problems += [replace(problem, node=identity) for problem in draft.problems]
    edges = tuple(
        n.Edge(ids[index], ids[target], label)
        for index, draft in enumerate(drafts)
        for label, target in draft.exits.items()
    )
    opaque = tuple(
        n.Opaque(draft.opaque, draft.line, identity)
        for draft, identity in zip(drafts, ids, strict=True)
        if draft.opaque
    )
    graph = StateGraph(
        program=name,
        entry=ids[0],
        nodes=_with_prefixes(nodes, edges),
        edges=edges,
        parameters=source.parameters,
        opaque=opaque,
        problems=tuple(problems),
    )
    return graph, ids


def _ids(drafts: list[Draft]) -> list[str]:
    """ "gen:answer" where a step has a name, else "append:12" by line; repeats are numbered."""
    counts: dict[str, int] = {}
    ids = []
    for draft in drafts:
        base = f"{draft.kind}:{draft.fields.get('name') or draft.line}"
        counts[base] = counts.get(base, 0) + 1
        ids.append(base if counts[base] == 1 else f"{base}#{counts[base]}")
    return ids


def _node(source: FunctionSource, draft: Draft, identity: str, state: str | None) -> n.Node:
    fields = {name: value for name, value in draft.fields.items() if value is not None}
    if draft.kind == "python":
        fields["source"] = _pretty(draft.body)
        fields["opaque"] = draft.opaque
    for name in ("condition", "value", "query"):
        if name in fields:
            fields[name] = _readable(fields[name])
    return n.KINDS[draft.kind](
        id=identity,
        file=source.file,
        line=draft.line,
        reads=tuple(sorted(loaded(draft.body) & source.locals)),
        writes=tuple(sorted(stored(draft.body) & source.locals)),
        state_reads=reads.state_reads(draft.body, state),
        scopes=reads.scopes(draft.body, state),
        **fields,
    )


def _pretty(body: list[ast.stmt]) -> str:
    return _readable("\n".join(ast.unparse(statement) for statement in body))


def _readable(text: str) -> str:
    text = re.sub(rf"{TEMPS}\[(\d+)\]", r"_\1", text)
    return text.replace("_ph_next(", "iter(")


def _with_prefixes(nodes: dict[str, n.Node], edges: tuple[n.Edge, ...]) -> dict[str, n.Node]:
    """Give each step the constant text that is known to stand right before it."""
    entering: dict[str, list[str]] = {}
    for edge in edges:
        entering.setdefault(edge.target, []).append(edge.source)
    for identity, node in nodes.items():
        before = entering.get(identity, [])
        if not isinstance(node, n.Gen | n.Select) or len(before) != 1:
            continue
        previous = nodes[before[0]]
        if isinstance(previous, n.Append):
            text = ""
            for what, value in reversed(previous.atoms):
                if what != "text":
                    break
                text = value + text
            nodes[identity] = replace(node, prefix=text)
    return nodes
