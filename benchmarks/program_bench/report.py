"""The summary as Markdown, put into a page between two marks.

What lives here: `markdown` and `put_into`. What does not: the numbers (`summary.py`) and the
picture (`plot.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .shapes import SHAPES

__all__ = ["markdown", "put_into"]

BEGIN = "<!-- programs: begin (written by benchmarks/programs.py) -->"
END = "<!-- programs: end -->"
Summary = dict[str, Any]


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the marks; without them it goes to the end."""
    whole = page.read_text()
    block = f"{BEGIN}\n\n{text.strip()}\n\n{END}\n"
    if BEGIN in whole and END in whole:
        before, rest = whole.split(BEGIN, 1)
        whole = before + block + rest.split(END, 1)[1].lstrip("\n")
    else:
        whole = f"{whole.rstrip()}\n\n## Whole programs beside other engines\n\n{block}"
    page.write_text(whole)


def markdown(summary: Summary, machine: str, picture: str) -> str:
    """All tables."""
    parts = [
        f"{machine} One engine's processes run at a time, rounds are interleaved; medians. What is "
        "compared and how: [benchmarks.md](benchmarks.md).",
        _engines(summary),
        '### One program at a time\n\nSeconds, p50 / p95. "again" is the same program a second '
        f"time.\n\n{_latencies(summary)}",
        *(
            f"### {at_once} at once\n\nPrograms per second.\n\n{_rates(summary, at_once)}"
            for at_once in (8, 32)
            if _measured(summary, str(at_once))
        ),
        f"![Time of the five-step chain, and programs per second]({picture})" if picture else "",
        f"### Goals\n\n{_goals(summary)}",
        f"### Floors of the five-step chain\n\n{_floors(summary)}",
        f"### What explains the times\n\n{_counts(summary)}",
        f"### Where work is not equal\n\n{_differences(summary)}",
        _noise(summary),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def _number(value: float | None, digits: int = 3) -> str:
    """With `digits` significant digits, without exponents."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - magnitude)}f}"


def _engines(summary: Summary) -> str:
    rows = [
        (
            name,
            engine["title"],
            engine["held"] or engine["weights"],
            engine["version"] or f"absent: {engine['absent']}",
        )
        for name, engine in summary["engines"].items()
    ]
    return _table(("engine", "what it is", "weights", "version"), rows)


def _measured(summary: Summary, at_once: str) -> list[str]:
    """Shapes with a case of so many at once, in their order."""
    cases = summary["cases"].values()
    return [shape for shape in SHAPES if any(at_once in case.get(shape, {}) for case in cases)]


def _cases_table(
    summary: Summary, at_once: str, columns: list[tuple[str, str]], cell: Callable[..., str]
) -> str:
    shapes = [shape for shape, _ in columns]
    reasons: list[str] = []
    rows = []
    for name, cases in summary["cases"].items():
        found = [cases.get(shape, {}).get(at_once) for shape in shapes]
        if not any(found):
            continue
        texts = []
        for case, (shape, part) in zip(found, columns, strict=True):
            reason = case.get("why_not") if case else None
            if reason:
                reasons.append(f"{name}, {shape}: {reason}")
            texts.append("-" if case is None else "(-)" if reason else cell(case, part))
        rows.append((name, summary["engines"][name]["weights"], *texts))
    head = ("engine", "weights", *(s if p == "first" else f"{s}, {p}" for s, p in columns))
    notes = "\n\n(-): " + "; ".join(dict.fromkeys(reasons)) + "." if reasons else ""
    return _table(head, rows) + notes


def _latencies(summary: Summary) -> str:
    columns = [
        (shape, part)
        for shape in _measured(summary, "1")
        for part in (("first", "again") if SHAPES[shape].again else ("first",))
    ]

    def cell(case: dict[str, Any], part: str) -> str:
        times = case.get(part)
        return f"{_number(times['p50'])} / {_number(times['p95'])}" if times else "-"

    return _cases_table(summary, "1", columns, cell)


def _rates(summary: Summary, at_once: int) -> str:
    columns = [(shape, "first") for shape in _measured(summary, str(at_once))]

    def cell(case: dict[str, Any], part: str) -> str:
        del part
        return _number(case["per_s"])

    return _cases_table(summary, str(at_once), columns, cell)


def _goals(summary: Summary) -> str:
    rows = []
    for goal in summary["goals"]:
        sign = "≥" if goal["least"] else "≤"
        met = {None: "not measured", True: "yes", False: "**no**"}[goal["met"]]
        rows.append((goal["what"], f"{sign} {goal['bound']}", _number(goal["reached"]), met))
    return _table(("goal", "bound", "reached", "met"), rows)


def _floors(summary: Summary) -> str:
    rows = []
    for name, floor in summary["floors"].items():
        for part in ("first", "again"):
            if part in floor:
                found = floor[part]
                rows.append(
                    (
                        f"{name}, {part}",
                        _number(floor["step_ms"][1]),
                        _number(floor["prefill_per_s"], 4),
                        _number(found["floor_s"]),
                        _number(found["seconds"]),
                        _number(found["passes"]),
                        f"{found['own_share']:.1%}",
                        f"{found['own_share_calibrated']:.1%}",
                    )
                )
    note = (
        "The decoder alone, measured in the same rounds after 700 tokens: a step of one row, and "
        "prefill. The floor is every token once at that speed and nothing beside it; guesses can "
        "go below it. Outside the decoder: measured around every pass, and as what they should "
        "have taken by the decoder's speed alone.\n\n"
    )
    head = (
        "engine, pass", "step, ms", "prefill, tok/s", "floor, s", "mean, s", "passes",
        "outside the decoder", "by its speed alone",
    )  # fmt: skip
    return note + _table(head, rows)


def _counts(summary: Summary) -> str:
    names = (
        "prompt", "reused", "prefilled", "generated", "forced", "drafted", "accepted", "calls",
        "tokenised",
    )  # fmt: skip
    rows = [
        (f"{shape}, {engine}", *(_number(counts[shape][name]) for name in names))
        for shape in SHAPES
        for engine, counts in summary["counts"].items()
        if shape in counts
    ]
    note = "Means per program; -: the engine does not say.\n\n"
    return note + _table(("shape, engine", *names[:-2], "HTTP calls", "tokenisations"), rows)


def _differences(summary: Summary) -> str:
    lines = [
        f"* {engine}, {shape}: {'; '.join(notes)}"
        for engine, shapes in summary["differences"].items()
        for shape, notes in shapes.items()
    ]
    return "\n".join(lines) or (
        "Nowhere: every output keeps its constraint, free steps have their lengths, and "
        "constrained ones are as long as phloem's within 10%."
    )


def _noise(summary: Summary) -> str:
    noisy = summary["noisy"]
    if not noisy:
        return ""
    worst = max(noisy.values())
    return (
        f"**Under load**: during {len(noisy)} cells others used more than 0.3 cores (at most "
        f"{worst:.1f})."
    )
