"""Traces as HTML: pieces that the page asks for, and whole files that need no server.

What lives here: filling the templates. What does not: HTTP (`routes.py`), what a template shows
(`panels.py` and the modules it uses).

Text of programs, users and models is escaped by the templates, without exception. The files
carry a content security policy that runs no script but their own.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from phloem.server.trace.reader import Facets, TraceFilter, TracePage
from phloem.server.trace.record import RunTrace
from phloem.server.viewer.compare import pairs_of, parts
from phloem.server.viewer.panels import Story
from phloem.server.viewer.text import FILTERS, pretty
from phloem.server.viewer.timeline import ticks_of

__all__ = [
    "CHUNK",
    "render_compare",
    "render_list",
    "render_panel",
    "render_rows",
    "render_run",
    "render_shell",
    "render_story",
    "static_file",
]

CHUNK = 100
"""Rows of a timeline that are fetched together."""
_STANDALONE_PROMPT = 8000
_HERE = Path(__file__).parent
_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(FILTERS)


def _render(template: str, **values: Any) -> str:
    return _TEMPLATES.get_template(template).render(**values)


def static_file(name: str) -> str:
    """The page's script or style."""
    return (_HERE / "static" / name).read_text(encoding="utf-8")


def render_shell(*, asks_for_key: bool) -> str:
    """The page itself, which holds no trace."""
    return _render("traces.html", asks_for_key=asks_for_key)


def render_list(
    page: TracePage, wanted: TraceFilter, facets: Facets, *, cursor: str | None = None
) -> str:
    """The list with its filters."""
    choices = (
        ("program", "Program", wanted.program, facets.programs),
        ("status", "Status", wanted.status, facets.statuses),
        ("error", "Error", wanted.error_type, facets.error_types),
    )
    asked = {
        "q": wanted.text, "program": wanted.program, "status": wanted.status,
        "error": wanted.error_type, "min_ms": wanted.min_ms, "max_ms": wanted.max_ms,
    }  # fmt: skip
    filters = {name: value for name, value in asked.items() if value is not None}
    older = f"traces?{urlencode({**filters, 'cursor': page.next})}" if page.next else None
    return _render(
        "list.html",
        page=page,
        wanted=wanted,
        choices=choices,
        filtered=bool(filters),
        cursor=cursor,
        first=f"traces?{urlencode(filters)}" if filters else "traces",
        older=older,
    )


def render_story(story: Story, *, standalone: bool = False) -> str:
    """A run, without its rows and panels."""
    return _render("run.html", **_frame(story, standalone))


def render_rows(story: Story, chunk: int) -> str:
    """The rows of the timeline from number chunk * CHUNK on."""
    first = chunk * CHUNK
    rows = story.rows[first : first + CHUNK]
    return _render("rows.html", rows=rows, first=first, total=len(story.rows))


def render_panel(story: Story, name: str) -> str:
    """A panel by its name. Raises `TraceNotFound` if the trace has none of that name."""
    template, values = story.panel(name)
    return _render(template, story=story, **values)


def render_compare(old: Story, new: Story) -> str:
    """Two runs side by side."""
    pairs = pairs_of(old.steps, new.steps)
    values = pretty(_result(old.run)), pretty(_result(new.run))
    left, right = parts(*values)
    different = sum(not pair.same for pair in pairs)
    return _render(
        "compare.html",
        old=old,
        new=new,
        pairs=pairs,
        old_value=left,
        new_value=right,
        values_same=values[0] == values[1],
        summary=f"{different} of {len(pairs)} steps differ" if different else "no step differs",
    )


def render_run(run: RunTrace, standalone: bool = True) -> str:
    """A trace as HTML: a file of its own that needs no network, or only the piece for a page.

    In a file the end of each prompt is kept (8,000 characters), the rest as recorded.
    """
    if not standalone:
        return render_story(Story(run))
    story = Story(run, prompt=_STANDALONE_PROMPT)
    css, js = static_file("traces.css"), static_file("traces.js")
    chunks = range((len(story.rows) + CHUNK - 1) // CHUNK)
    stored = [(f"rows/{chunk}", Markup(render_rows(story, chunk))) for chunk in chunks]
    stored += [(name, Markup(render_panel(story, name))) for name in story.panels]
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(css)}'; script-src '{_hash(js)}'"
    )
    return _render(
        "standalone.html",
        css=Markup(css),
        js=Markup(js),
        policy=Markup(policy),
        stored=stored,
        **_frame(story, True),
    )


def _frame(story: Story, standalone: bool) -> dict[str, Any]:
    return {
        "story": story,
        "opened": story.opened,
        "ticks": ticks_of(story.length_ms),
        "chunk": CHUNK,
        "standalone": standalone,
    }


def _result(run: RunTrace) -> Any:
    return f"{run.error.type}: {run.error.message}" if run.error is not None else run.value


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"
