"""Servers that the tests of this room share."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import structlog

from tests.server.harness import Running, serving, tiny


@pytest.fixture(scope="session", autouse=True)
def quiet_logs() -> None:
    """Drop log lines; tests of the log configure it themselves."""
    structlog.configure(processors=[drop])


@pytest.fixture
def own_logging() -> Iterator[None]:
    """For tests that configure logging: everything is as before when they are over."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.configure(processors=[drop])


def drop(*_: Any) -> None:
    raise structlog.DropEvent


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server on the tiny model, default settings."""
    with serving(tiny()) as running:
        yield running


@pytest.fixture
def start() -> Callable[..., AbstractContextManager[Running]]:
    """Start a server of one's own: `start(context=512, max_running=2)`."""

    def starting(context: int = 4096, **settings: Any) -> AbstractContextManager[Running]:
        return serving(tiny(context), **settings)

    return starting


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless."""
    binary = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if binary is None:
        pytest.skip("needs Chromium: apt install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()
