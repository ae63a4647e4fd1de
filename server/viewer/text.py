"""Values and numbers as people read them: the filters of the templates.

What lives here: pure functions from data to text. What does not: HTML; the templates escape
whatever these return.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from phloem.server.trace.record import RunTrace

__all__ = ["FILTERS", "pretty"]

LINE = 60
"""Characters of JSON that stay in one line."""


def ms(value: float | None) -> str:
    """A length of time with three digits or so: "0.42 ms", "38 ms", "1.24 s", "3 min 20 s"."""
    if value is None:
        return ""
    if value < 9.995:
        return f"{value:.2f}".rstrip("0").rstrip(".") + " ms"
    if value < 999.5:
        return f"{value:.0f} ms"
    if value < 59_995:
        return f"{value / 1000:.2f}".rstrip("0").rstrip(".") + " s"
    minutes, seconds = divmod(round(value / 1000), 60)
    return f"{minutes} min {seconds} s"


def clock(value: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(value: float) -> str:
    """The same for machines."""
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")


def pretty(value: Any) -> str:
    """A text as it is, anything else as JSON: in one line where it is short, else indented."""
    return value if isinstance(value, str) else _json(value, "")


def _json(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False, default=repr)
    if len(line) + len(indent) <= LINE or not isinstance(value, Mapping | list | tuple):
        return line
    deeper = indent + "  "
    if isinstance(value, Mapping):
        parts = [f"{json.dumps(str(key), ensure_ascii=False)}: {_json(item, deeper)}"
                 for key, item in value.items()]  # fmt: skip
        opening, closing = "{}"
    else:
        parts = [_json(item, deeper) for item in value]
        opening, closing = "[]"
    body = ",\n".join(deeper + part for part in parts)
    return f"{opening}\n{body}\n{indent}{closing}"


def head(value: str, length: int = 120) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(value[: 4 * length].split())
    return line if len(line) <= length and len(value) <= 4 * length else line[:length] + "…"


def basename(path: str) -> str:
    """The name of a file without its folders, of whichever system."""
    return re.split(r"[/\\]", path)[-1]


def reused(usage: Mapping[str, Any] | None) -> str | None:
    """Which part of all prompts came from the cache."""
    if not usage or not usage.get("prompt"):
        return None
    return f"{usage.get('reused', 0) / usage['prompt']:.0%} of prompts"


def kind_class(word: str) -> str:
    """A word of somebody else's as a class that styles may know."""
    return word if word in {"system", "user", "assistant", "tool", "developer"} else "other"


def definition(constraint: Mapping[str, Any]) -> Any:
    """What a constraint demands, without its options."""
    source = constraint.get("source")
    if not isinstance(source, str) or constraint.get("kind") not in {"json_schema", "choices"}:
        return source
    try:
        return json.loads(source)
    except ValueError:
        return source


def without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping without one of its keys."""
    return {key: item for key, item in value.items() if key != name}


def node(run: RunTrace, name: str | None) -> Mapping[str, Any] | None:
    """The node of the run's graph with this id."""
    nodes = (run.graph or {}).get("nodes", ())
    return next((one for one in nodes if one["id"] == name), None)


FILTERS = {
    one.__name__: one
    for one in (
        ms, clock, iso, pretty, head, basename, reused, kind_class, definition, without, node,
    )
}  # fmt: skip
"""By the names that templates use."""
