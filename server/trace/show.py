"""A trace in a terminal.

What lives here: one line for an exchange or a summary, a tree for a run. What does not: where
traces come from (`readers/`), and the viewer's pages (`server/viewer`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree

from phloem.server.trace.reader import TraceSummary
from phloem.server.trace.record import Exchange, RunTrace, TraceError
from phloem.server.trace.steps import Step, steps_of

__all__ = ["exchange_line", "run_tree", "summary_line"]

STYLES = {"succeeded": "green", "failed": "bold red", "cancelled": "yellow"}
WIDTH = 100


def summary_line(one: TraceSummary) -> Text:
    """A trace in a list."""
    line = _begin(one.started, one.status)
    took = f"{one.duration_ms:9.1f} ms" if one.duration_ms is not None else "           -"
    line.append(f"{took}  {one.steps:3} steps  ")
    line.append(one.id, style="cyan").append(f"  {one.program or one.kind}")
    if one.error_type:
        line.append(f"  {one.error_type}: {_short(one.error_message or '')}", style="red")
    elif one.preview:
        line.append(f"  {_short(one.preview, 60)}", style="dim")
    return line


def exchange_line(one: Exchange) -> Text:
    """An exchange, by what a person looks for first."""
    line = _begin(one.started, one.outcome)
    line.append(f"{one.status or '-'} {one.method} {one.path}", style="bold")
    first = one.timing.first_byte_ms
    line.append(f"  {one.timing.total_ms:.1f} ms")
    line.append(f" (first byte {first:.1f})" if first is not None else "", style="dim")
    if one.usage:
        sent = one.usage.get("prompt_tokens", one.usage.get("prompt"))
        came = one.usage.get("completion_tokens", one.usage.get("generated"))
        line.append(f"  {sent} -> {came} tokens")
    if one.finish_reason:
        line.append(f"  {one.finish_reason}")
    for error in one.errors:
        line.append(f"  {error.type}: {_short(error.message)}", style="red")
    if one.incomplete:
        line.append(f"  incomplete: {one.incomplete}", style="yellow")
    return line


def run_tree(run: RunTrace) -> Tree:
    """A trace as a tree: its steps by branch, its exchanges, its error with the source line."""
    tree = Tree(_heading(run))
    if run.args:
        tree.add(_label("args", run.args))
    branches: dict[str, Tree] = {"": tree}
    for step in steps_of(run):
        _step(_branch(branches, step.path), step)
    for one in run.exchanges:
        node = tree.add(exchange_line(one))
        if one.output:
            node.add(_label("output", one.output))
    if run.error is not None:
        _error(tree, run.error)
    elif run.value is not None:
        tree.add(_label("value", run.value))
    return tree


def _heading(run: RunTrace) -> Text:
    line = _begin(run.started, run.status)
    line.append(f"{run.program or run.kind} ", style="bold").append(run.id, style="cyan")
    if run.duration_ms is not None:
        line.append(f"  {run.duration_ms:.1f} ms")
    if run.usage:
        used = run.usage
        line.append(f"  prompt {used['prompt']} (reused {used['reused']})", style="dim")
        line.append(f", generated {used['generated']}", style="dim")
    if run.parent:
        line.append(f"  rewound from {run.parent}", style="dim")
    return line


def _branch(branches: dict[str, Tree], path: str) -> Tree:
    if path not in branches:
        parent = _branch(branches, path.rpartition(".")[0] if "." in path else "")
        branches[path] = parent.add(Text(f"branch {path}", style="magenta"))
    return branches[path]


def _step(tree: Tree, step: Step) -> None:
    line = Text(f"{step.kind} ", style="bold").append(step.name or "", style="bold cyan")
    line.append(f"  {step.node or ''}", style="dim")
    if step.file and step.line:
        line.append(f"  {step.file}:{step.line}", style="dim")
    if step.duration_ms is not None:
        line.append(f"  {step.duration_ms:.1f} ms")
    if step.usage and step.kind in {"gen", "select"}:
        used = step.usage
        line.append(f"  prompt {used['prompt']} (reused {used['reused']})")
        if used["generated"]:
            line.append(f", generated {used['generated']} (forced {used['forced']})")
    node = tree.add(line)
    if step.error is not None:
        node.add(Text(f"{step.error[0]}: {step.error[1]}", style="red"))
    if step.query is not None:
        node.add(_label("query", step.query))
    for hit in step.hits:
        title = hit.get("title") or _short(str(hit.get("text", "")), 60)
        node.add(Text(f"{hit.get('score') or 0:.3f}  {hit['id']}  {title}"))
    if step.scores:
        node.add(_label("scores", step.scores))
    if step.text:
        node.add(_label("text", step.text))


def _error(tree: Tree, error: TraceError) -> None:
    node = tree.add(Text(f"{error.type}: {error.message}", style="bold red"))
    place = (("program", error.program), ("node", error.node))
    for name, value in place:
        if value:
            node.add(_label(name, value))
    if error.file:
        node.add(Text(f"at {error.file}:{error.line}"))
    for number, source in error.excerpt:
        mark = ">" if number == error.line else " "
        node.add(Text(f"{mark} {number:4} {source}", style="bold" if mark == ">" else "dim"))
    if error.cause:
        node.add(_label("cause", error.cause))
    for name, value in (error.variables or {}).items():
        node.add(_label(name, value))
    if error.hint:
        node.add(_label("hint", error.hint))


def _begin(started: float, status: str) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(started))
    line = Text(f"{clock}.{int(started % 1 * 1000):03d} ", style="dim")
    return line.append(f"{status:9} ", style=STYLES.get(status, ""))


def _label(name: str, value: Any) -> Text:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, Mapping):
        text = ", ".join(
            f"{key}={json.dumps(item, ensure_ascii=False, default=str)}"
            for key, item in value.items()
        )
    return Text(f"{name}: ", style="dim").append(_short(text, 400), style="")


def _short(text: str, width: int = WIDTH) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= width else plain[: width - 1] + "…"
