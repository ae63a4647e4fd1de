"""What all tests share: a quiet, plain terminal for the command line."""

from __future__ import annotations

import os

# Rich and typer cut and colour their output by the terminal: tests read plain, wide text.
os.environ.setdefault("COLUMNS", "200")
os.environ["NO_COLOR"] = "1"
os.environ["TERM"] = "dumb"
