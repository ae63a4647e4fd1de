"""`phloem model`, and having a model ready before a run.

What lives here: the progress bar, the offer to download, and printing. What does not: where
models are and how they are fetched (`runtime/model/store.py`).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from phloem.errors import ModelNotFound
from phloem.programs import registry
from phloem.programs.protocol import Backend
from phloem.runtime.model import store
from phloem.runtime.model.progress import Progress as Report
from phloem.server.remote import sglang_backend
from phloem.server.settings import Settings

__all__ = ["list_models", "load_backend", "path", "pull"]


def pull(name: str | None) -> None:
    """Fetch a model with a progress bar, and say where it is."""
    name = name or store.DEFAULT_MODEL
    typer.echo(f"{name}: {_fetch(name)}")
    terms = store.terms(name)
    if terms is not None:
        typer.echo(f"its terms: {terms}")


def list_models() -> None:
    """Print the models on this machine."""
    found = store.list_models()
    if not found:
        typer.echo("no models here; fetch the default one with: phloem model pull")
        return
    for model in found:
        typer.echo(f"{model.name}  {model.size / 1e6:.0f} MB  {model.path}")


def path(name: str | None) -> None:
    """Print where a model is, for scripts. Raises `ModelNotFound`."""
    typer.echo(store.model_path(name or store.DEFAULT_MODEL))


def load_backend(settings: Settings) -> None:
    """Load the backend of the settings, and make it the default, so that a run starts at once.

    Where the default model is missing, a person is asked whether to fetch it; where nobody can
    answer, it is fetched with a message. Raises the errors of `load_model`.
    """
    if settings.remote:
        registry.set_default("backend", sglang_backend(settings))
    elif settings.model is not None:
        embedded = importlib.import_module("phloem.runtime.embedded")  # this imports torch
        registry.set_default("backend", embedded.EmbeddedBackend(settings.model))
    try:
        _load()
    except ModelNotFound as error:
        if settings.remote or settings.model not in {None, store.DEFAULT_MODEL}:
            raise
        typer.echo(error.message, err=True)
        if sys.stdin.isatty() and not typer.confirm("Download it now?", default=True, err=True):
            raise
        _fetch(store.DEFAULT_MODEL)
        _load()


def _load() -> None:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        progress.add_task("loading the model")
        backend: Backend = registry.default("backend")
        _ = backend.capabilities  # the first look loads the model


def _fetch(name: str) -> Path:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=None, visible=False)
        phase = ""

        def show(report: Report) -> None:
            nonlocal phase
            doing = f"{report.phase} {name}"
            progress.update(
                task, description=doing, completed=report.done, total=report.total, visible=True
            )
            if report.phase != phase and not console.is_terminal:
                typer.echo(doing, err=True)  # a log gets a line a phase in place of the bar
            phase = report.phase

        return store.pull(name, show)
