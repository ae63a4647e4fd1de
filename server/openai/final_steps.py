"""Which steps of a program say what it returns, so that their tokens can be passed on as they come.

What lives here: reading that off the graph. What does not: the stream (`program_chat.py`).
"""

from __future__ import annotations

from phloem.programs.api.function import Program
from phloem.programs.nodes import Append, Gen, Return

__all__ = ["final_steps"]


def final_steps(program: Program) -> frozenset[str]:
    """The ids of gen nodes whose text is the program's value, whatever comes.

    They are followed by nothing but text and a `return` of the step's own variable; their value is
    their text: no parsed value, no list of samples, and not what is left of a reasoning block.
    """
    code = program.function.__code__
    samples = any(isinstance(known, tuple) and "n" in known for known in code.co_consts)
    if samples or "separate_reasoning" in code.co_names:
        return frozenset()
    gens = (node for node in program.graph.nodes.values() if isinstance(node, Gen))
    return frozenset(node.id for node in gens if _is_final(program, node))


def _is_final(program: Program, step: Gen) -> bool:
    if step.constraint is not None or step.independent or step.name is None:
        return False
    graph = program.graph
    node = graph.nodes[step.id]
    seen = {node.id}
    while True:
        following = graph.successors(node.id)
        if len(following) != 1 or following[0].target in seen:
            return False
        node = graph.nodes[following[0].target]
        seen.add(node.id)
        if isinstance(node, Return):
            state = program.state_parameter
            return node.value in step.writes or node.value == f"{state}[{step.name!r}]"
        if not isinstance(node, Append):
            return False
