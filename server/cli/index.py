"""`phloem index`: documents into an index, and out of it.

What lives here: progress and printing. What does not: the work (`retrieval/admin.py`). The
commands use whichever index the environment names, embedded or a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from phloem.errors import RetrievalError
from phloem.retrieval import admin
from phloem.retrieval.base import Mode, Query
from phloem.retrieval.ingest.pipeline import IngestReport, Progress

__all__ = ["add", "delete", "list_indexes", "rebuild", "search", "show"]


def add(paths: Sequence[Path], index: str, embed: bool) -> None:
    """Add files and folders. Raises `RetrievalError` if something could not be added."""
    _ingest(index, lambda show: admin.add(paths, index=index, embed=embed, progress=show))


def rebuild(paths: Sequence[Path], index: str, embed: bool) -> None:
    """Put files and folders in place of what the index holds."""
    _ingest(index, lambda show: admin.rebuild(paths, index=index, embed=embed, progress=show))


def search(text: str, index: str, k: int, mode: str) -> None:
    """Print the `k` best hits: rank, score, id, title, and the beginning of the text."""
    query = Query(text, index=index, k=k, mode=cast("Mode", mode))
    hits = asyncio.run(admin.search(query))
    console = Console(highlight=False)
    for rank, hit in enumerate(hits, start=1):
        head = Text.assemble((f"{rank}. ", "bold"), f"{hit.score:.2f}  ", (hit.id, "cyan"))
        console.print(head.append(f"  {hit.title or ''}"))
        body = Text(" ".join(hit.text.split()))
        body.truncate(3 * console.width, overflow="ellipsis")
        console.print(body)
    if not hits:
        typer.echo(f"nothing in {index} matches", err=True)


def list_indexes() -> None:
    """Print each index with its documents and its size."""
    infos = asyncio.run(admin.list_indexes())
    for info in infos:
        typer.echo(f"{info.name}  {info.documents} documents  {info.bytes / 1e6:.1f} MB")
    if not infos:
        typer.echo("no index yet; make one with: phloem index add PATH", err=True)


def show(index: str, sample: int) -> None:
    """Print what is known of an index, and its first documents."""
    details = asyncio.run(admin.show(index, sample=sample))
    info = details.info
    vectors = f"{info.dims} dimensions by {info.embedder}" if info.dims else "none"
    typer.echo(f"{info.name}: {info.documents} documents, {info.bytes / 1e6:.1f} MB")
    typer.echo(f"vectors: {vectors}\nin: {details.source}")
    for document in details.sample:
        typer.echo(f"\n{document.id}  {document.title or ''}\n{document.text}")


def delete(index: str, ids: Sequence[str]) -> None:
    """Delete documents, or the whole index where no id is given."""
    if ids:
        gone = asyncio.run(admin.delete(ids, index=index))
        typer.echo(f"{index}: {gone} of {len(ids)} documents deleted")
    else:
        asyncio.run(admin.drop(index))
        typer.echo(f"{index}: deleted")


def _ingest(
    index: str,
    work: Callable[[Callable[[Progress], None]], Coroutine[Any, Any, IngestReport]],
) -> None:
    """Do `work`, which reports to the callback it is given, and print what it did."""
    console = Console(stderr=True)
    columns = (TextColumn("indexing {task.fields[file]}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, file="")

        def draw(state: Progress) -> None:
            bar.update(task, completed=state.bytes_done, total=state.bytes_total, file=state.file)

        report = asyncio.run(work(draw))
    state = report.progress
    typer.echo(
        f"{index}: {state.added} passages added, {state.unchanged} unchanged, "
        f"{state.removed} removed, from {state.files_done} files"
    )
    if report.failed:
        reasons = "".join(f"\n  {what}: {why}" for what, why in report.failed)
        raise RetrievalError(
            f"{len(report.failed)} could not be added to {index}:{reasons}",
            hint="the others are stored; mend these and add the same paths again",
        )
