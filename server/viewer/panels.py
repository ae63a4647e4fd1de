"""What the panel beside the timeline shows: a step, a transition, an exchange, the whole run.

What lives here: `Story`, a trace with all that is worked out of it, and what each panel's
template needs. What does not: HTML (templates/) and asking for traces (`routes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from phloem.server.trace.reader import TraceNotFound
from phloem.server.trace.record import RunTrace
from phloem.server.trace.steps import Step, steps_of
from phloem.server.viewer.conversation import Turn, turns_of
from phloem.server.viewer.graph import DrawnNode, GraphView, draw
from phloem.server.viewer.spans import PROMPT, output_spans, prompt_view
from phloem.server.viewer.timeline import Row, length_ms, rows_of

__all__ = ["Change", "Story"]

VARIABLES = 40
"""Variables that a step shows, those that it changed first."""


@dataclass(frozen=True, slots=True)
class Change:
    """A variable before and after a step. `what`: "new", "changed" or ""."""

    name: str
    before: Any
    after: Any
    what: str


class Story:
    """A trace as it is shown. `prompt` bounds the characters of a prompt. `can_rewind`: the page's
    own server has the run, or passes rewinds on to the one that has it."""

    def __init__(self, run: RunTrace, *, prompt: int = PROMPT, can_rewind: bool = False) -> None:
        self.run = run
        self.can_rewind = can_rewind
        self._prompt = prompt

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The run's steps."""
        return steps_of(self.run)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The lines of the timeline."""
        return rows_of(self.run, self.steps)

    @cached_property
    def graph(self) -> GraphView | None:
        """The state graph, or None."""
        return draw(self.run)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The exchanges as a conversation."""
        return turns_of(self.run.exchanges)

    @cached_property
    def length_ms(self) -> float:
        """What the width of the timeline stands for."""
        return length_ms(self.run, self.steps)

    @cached_property
    def opened(self) -> str:
        """The panel to begin with: the error, or the whole run."""
        return "run" if self.run.error is None else "error"

    @cached_property
    def failed_step(self) -> str:
        """The panel of the step that failed last, "" if none did."""
        failed = [n for n, step in enumerate(self.steps) if step.error is not None]
        return f"steps/{failed[-1]}" if failed else ""

    @cached_property
    def panels(self) -> tuple[str, ...]:
        """The names of all panels."""
        error = () if self.run.error is None else ("error",)
        nodes = [f"nodes/{number}" for number in range(len(self.graph.nodes) if self.graph else 0)]
        return ("run", *error, *nodes, *(row.opens for row in self.rows if row.opens))

    @property
    def home(self) -> str | None:
        """The run's page on the server that has it, where that is another one and known."""
        source = self.run.source or ""
        if self.can_rewind or not source.startswith(("http://", "https://")):
            return None
        return f"{source}/traces?run={quote(self.run.id, safe='')}"

    def why_no_rewind(self, step: Step) -> str:
        """What to tell where a rewind would be offered."""
        if self.run.finished is None:
            return "The run goes on. It can be rewound when it is over."
        if self.can_rewind and step.seq is None:
            return "This step can't be rewound: the run's record holds no outcome of it."
        return "This is a trace that was kept. Only the server that ran it can rewind it."

    def passes(self, node: str) -> tuple[Row, ...]:
        """The rows of a drawn node."""
        members = self.graph.members if self.graph else {}
        return tuple(row for row in self.rows if members.get(row.node or "") == node)

    def opens(self, number: int) -> str:
        """The panel of the drawn node with this number: its row's, if there is just one."""
        assert self.graph is not None
        rows = self.passes(self.graph.nodes[number].id)
        return rows[0].opens if len(rows) == 1 else f"nodes/{number}"

    def panel(self, name: str) -> tuple[str, dict[str, Any]]:
        """The template of a panel and what it needs. Raises `TraceNotFound`."""
        kind, _, number = name.partition("/")
        at = int(number) if number.isdecimal() else 0
        if kind == "run":
            return "run_panel.html", {"turns": self.turns if not self.steps else ()}
        if kind == "error" and self.run.error is not None:
            return "error_panel.html", {}
        known: dict[str, tuple[Any, ...]] = {
            "steps": self.steps, "events": self.run.events, "exchanges": self.turns,
            "nodes": self.graph.nodes if self.graph else (),
        }  # fmt: skip
        if at >= len(known.get(kind, ())):
            raise TraceNotFound(f"the trace {self.run.id!r} has no {name}")
        if kind == "steps":
            return "step_panel.html", self._step(self.steps[at])
        if kind == "nodes":
            return "node_panel.html", self._node(known[kind][at])
        if kind == "events":
            return "event_panel.html", {"event": self.run.events[at]}
        return "exchange_panel.html", {"turn": self.turns[at]}

    def _node(self, node: DrawnNode) -> dict[str, Any]:
        members = self.graph.members if self.graph else {}
        texts = [
            event["text"]
            for event in self.run.events
            if event["type"] == "appended" and members.get(event["node"] or "") == node.id
        ]
        return {"node": node, "passes": self.passes(node.id), "texts": texts}

    def _step(self, step: Step) -> dict[str, Any]:
        return {
            "step": step,
            "prompt": prompt_view(step, self._prompt),
            "spans": output_spans(step),
            "changes": _changes(step)[:VARIABLES],
            "unchanged": max(0, len({**step.before, **step.after}) - VARIABLES),
            "scores": _scores(step),
        }


def _changes(step: Step) -> tuple[Change, ...]:
    def change(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
        if name not in before:
            return Change(name, None, after[name], "new")
        same = before[name] == after.get(name)
        return Change(name, before[name], after.get(name), "" if same else "changed")

    names = dict.fromkeys([*step.before, *step.after])
    found = [change(name, step.before, step.after) for name in names]
    return tuple(sorted(found, key=lambda one: not one.what))


def _scores(step: Step) -> tuple[tuple[str, float, float], ...]:
    """Each choice with its score and its bar's width in percent, best first."""
    scores = sorted((step.scores or {}).items(), key=lambda item: -item[1])
    if not scores:
        return ()
    best, worst = scores[0][1], scores[-1][1]
    spread = (best - worst) or 1.0
    return tuple((text, score, 8 + 92 * (score - worst) / spread) for text, score in scores)
