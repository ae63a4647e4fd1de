"""`phloem model`, and having a model ready before a run.

What lives here: the progress bar, the offer to download, and printing. What does not: where
models are and how they are fetched (`runtime/model/store.py`).
"""

from __future__ import annotations

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

__all__ = ["list_models", "load_backend", "path", "pull"]


def pull(name: str | None) -> None:
    """Fetch a model with a progress bar, and say where it is."""
    name = name or store.DEFAULT_MODEL
    typer.echo(f"{name}: {_fetch(name)}")


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


def load_backend() -> None:
    """Make the default backend, so that a run starts at once; offers to fetch its model.

    A person is asked; where nobody can answer, the model is fetched with a message.
    """
    try:
        _make_backend()
    except ModelNotFound as error:
        name = error.details.get("model", store.DEFAULT_MODEL)
        typer.echo(f"The model {name} is not on this machine.", err=True)
        if sys.stdin.isatty() and not typer.confirm("Download it now?", default=True, err=True):
            raise
        _fetch(name)
        _make_backend()


def _make_backend() -> None:
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
