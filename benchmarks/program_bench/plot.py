"""The picture of the benchmark: bars in SVG, written by hand.

What lives here: `svg`. What does not: the numbers (`summary.py`).
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

__all__ = ["svg"]

WIDTH, LABEL, BAR, GAP, HEAD = 760, 170, 16, 7, 34
OURS, OTHERS = "#2f7d4f", "#9aa5b1"
Bars = list[tuple[str, float]]


def svg(summary: dict[str, Any]) -> str:
    """Two charts: seconds of the chain one at a time, and programs per second at 8 at once."""
    cases = summary["cases"]
    single: Bars = []
    together: Bars = []
    for name, shapes in cases.items():
        chain = shapes.get("chain", {})
        if "first" in chain.get("1", {}):
            single.append((name, chain["1"]["first"]["p50"]))
        if chain.get("8", {}).get("per_s") is not None:
            together.append((name, chain["8"]["per_s"]))
    charts = [
        ("Five-step chain, one at a time: seconds (shorter is better)", sorted(single, key=_value)),
        (
            "Five-step chain, 8 at once: programs per second (longer is better)",
            sorted(together, key=_value, reverse=True),
        ),
    ]
    parts: list[str] = []
    top = 0
    for title, bars in charts:
        if bars:
            parts += _chart(title, bars, top)
            top += HEAD + len(bars) * (BAR + GAP) + GAP
    style = "text{font:13px sans-serif;fill:#57606a}.title{font-weight:bold}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {max(top, 1)}" '
        f'role="img"><style>{style}</style>{"".join(parts)}</svg>\n'
    )


def _value(bar: tuple[str, float]) -> float:
    return bar[1]


def _chart(title: str, bars: Bars, top: int) -> list[str]:
    longest = max(value for _, value in bars)
    parts = [f'<text class="title" x="0" y="{top + 20}">{escape(title)}</text>']
    for i, (name, value) in enumerate(bars):
        y = top + HEAD + i * (BAR + GAP)
        width = (WIDTH - LABEL - 70) * value / longest
        colour = OURS if name.startswith("phloem") else OTHERS
        parts += [
            f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 13}">{value:.3g}</text>',
        ]
    return parts
