"""What all tests share: a quiet, plain terminal for the command line, and one SGLang server."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

import pytest

# Rich and typer cut and colour their output by the terminal: tests read plain, wide text.
os.environ.setdefault("COLUMNS", "200")
os.environ["NO_COLOR"] = "1"
os.environ["TERM"] = "dumb"


@pytest.fixture(scope="session")
def sglang_url() -> Iterator[str]:
    """The address of a real SGLang server (see `tests/sglang_server.py`)."""
    module = importlib.import_module("tests.sglang_server")  # torch, for those who need it
    with module.real_server() as url:
        yield url
