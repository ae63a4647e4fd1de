"""The trace table says what each transition reused and why not more."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from phloem.programs.events import (
    Appended,
    BranchTaken,
    Event,
    Retrieved,
    RunFinished,
    StepFinished,
    Token,
)
from phloem.programs.protocol import PrefixMiss, Timing, Usage
from phloem.server.cli.table import rows, trace


def made(event: type[Event], line: int | None = None, **fields: Any) -> Event:
    return event(run="r", seq=0, at=1.5, file="/home/me/agent.py", line=line, **fields)


RUN = [
    made(Appended, 3, text="<|im_start|>user\n"),
    made(Appended, 3, text="Hello"),
    made(Appended, 4, text="more"),
    made(
        StepFinished,
        5,
        kind="select",
        name="intent",
        text="yes",
        value="yes",
        usage=Usage(prompt=60, reused=10, prefilled=50, scored=8),
        timing=Timing(total_ms=33.3),
    ),
    made(BranchTaken, 6, taken="true"),
    made(Retrieved, 7, name="docs", query="q", index="handbook", hits=(), took_ms=1.25),
    made(Appended, 8, text="<|im_start|>assistant\n"),
    made(Token, 8, name="answer", text="x"),
    made(
        StepFinished,
        8,
        kind="gen",
        name="answer",
        text="x",
        value="x",
        usage=Usage(prompt=100, reused=60, prefilled=40, generated=12, forced=5),
        timing=Timing(total_ms=250.0),
        miss=PrefixMiss(position=55, text="Hello", origin="agent.py:3"),
    ),
    made(Appended, 8, text="<|im_end|>"),
    made(RunFinished, value="x"),
]


def printed(events: list[Event]) -> list[str]:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(trace(events))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_each_transition_is_one_row() -> None:
    """Text is part of the row of its source line; tokens are none; all others are one each."""
    assert [(row.what, row.place) for row in rows(RUN)] == [
        ("append", "agent.py:3"),
        ("append", "agent.py:4"),
        ("select intent", "agent.py:5"),
        ("branch: true", "agent.py:6"),
        ("retrieve docs", "agent.py:7"),
        ("gen answer", "agent.py:8"),
    ]


def test_the_table_adds_up() -> None:
    """The last line of the table sums the columns and gives the run's wall time."""
    lines = printed(RUN)
    assert lines[0].strip() == "agent.py"
    assert lines[1].split() == [
        *("transition", "line", "prompt", "reused", "forced", "generated", "scored", "ms")
    ]
    assert lines[-2].split() == ["6", "transitions", "total", "160", "70", "5", "12", "8", "1500"]


def test_a_miss_is_explained() -> None:
    """Below the table stands the first token that left the cached prefix, and its source."""
    assert printed(RUN)[-1] == (
        "gen answer left the cached prefix at token 55 ('Hello'), put there by agent.py:3"
    )


def test_branches_are_named() -> None:
    """A transition of a fork's child shows the child's path."""
    forked = made(Appended, 3, text="x", path="0.1")
    assert "[0.1] append" in printed([forked])[3]
