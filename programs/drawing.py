"""A state graph as a picture, in Mermaid's flowchart language.

What lives here: shapes and labels. What does not: layout, which is the viewer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phloem.programs import nodes as n

__all__ = ["to_mermaid"]

_SHAPES = {
    "append": ("[", "]"),
    "gen": ("([", "])"),
    "select": ("{{", "}}"),
    "retrieve": ("[(", ")]"),
    "fork": ("[/", "\\]"),
    "join": ("[\\", "/]"),
    "call": ("[[", "]]"),
    "python": ("[", "]"),
    "branch": ("{", "}"),
    "loop": ("{", "}"),
    "return": ("((", "))"),
}
_LIMIT = 48


def to_mermaid(entry: str, nodes: Mapping[str, n.Node], edges: Sequence[n.Edge]) -> str:
    """The flowchart, entry first; every node shows its kind, what it does, and its line."""
    names = {node: f"n{index}" for index, node in enumerate(nodes)}
    lines = ["flowchart TD", f"  start(( )) --> {names[entry]}"]
    for node in nodes.values():
        opening, closing = _SHAPES[node.kind]
        lines.append(f'  {names[node.id]}{opening}"{_label(node)}"{closing}')
    for edge in edges:
        arrow = "-->" if edge.label == "next" else f'-->|"{_escape(edge.label)}"|'
        lines.append(f"  {names[edge.source]} {arrow} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def _label(node: n.Node) -> str:
    match node:
        case n.Append():
            what = repr(node.text) if node.text is not None else "…"
            what = f"{node.role}: {what}" if node.role else what
        case n.Gen():
            what = node.name or ""
            if node.constraint:
                what += f" : {node.constraint.kind}"
        case n.Select():
            what = node.name or ""
            if node.choices is not None:
                what += f" : {' | '.join(node.choices)}"
        case n.Retrieve():
            what = node.query
        case n.Call():
            what = node.target
        case n.Python():
            what = node.source.strip().split("\n", 1)[0]
        case n.Branch() | n.Loop():
            what = node.condition
        case n.Return():
            what = node.value
        case _:
            what = ""
    if len(what) > _LIMIT:
        what = what[: _LIMIT - 1] + "…"
    place = f" (line {node.line})" if node.line else ""
    return _escape(f"{node.kind} {what}".strip() + place)


def _escape(text: str) -> str:
    # Mermaid reads entity codes inside quotes; a raw quote would end the label.
    special = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "\n": " ", "#": "#35;"}
    return "".join(special.get(char, char) for char in text)
