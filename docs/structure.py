"""Rewrites the list of modules at the end of docs/structure.md from the modules' docstrings.

`make docs` runs this. What is above the list in the page is written by hand.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADING = "## The modules"
ROOMS = {
    "src/phloem": "The face and the errors.",
    "server": "HTTP and the command line. May import everything below.",
    "runtime": "Where a session's tokens and KV live.",
    "programs": "The language, its compiler, and the executor.",
    "grammar": "Constraint to what may come next.",
    "retrieval": "A query to passages.",
}


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def modules() -> str:
    """The list: a heading for each room, a line for each module."""
    lines = [HEADING, ""]
    for room, about in ROOMS.items():
        lines += [f"### {room}", "", about, ""]
        pattern = "*.py" if room == "src/phloem" else "**/*.py"
        for path in sorted((ROOT / room).glob(pattern)):
            lines.append(f"* `{path.relative_to(ROOT).as_posix()}`: {summary(path)}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    page = ROOT / "docs" / "structure.md"
    written = page.read_text(encoding="utf-8").partition(HEADING)[0]
    page.write_text(written + modules(), encoding="utf-8")
