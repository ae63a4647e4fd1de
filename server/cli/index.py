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
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from phloem.errors import ConfigError, RetrievalError
from phloem.retrieval import admin
from phloem.retrieval.base import Mode, Query
from phloem.retrieval.ingest.pipeline import IngestReport, Progress
from phloem.server.cli.target import load_module

__all__ = ["add", "create", "delete", "list_indexes", "rebuild", "search", "show"]


def create(index: str, fields: str | None, url: str | None) -> None:
    """Make an empty index; `fields` names a pydantic model of the metadata, FILE.py:MODEL."""
    asyncio.run(admin.create(index, model=_model(fields) if fields else None, store=url))
    typer.echo(f"{index}: made")


def add(paths: Sequence[Path], index: str, embed: bool, url: str | None) -> None:
    """Add files and folders. Raises `RetrievalError` if something could not be added."""
    options: dict[str, Any] = {"index": index, "embed": embed, "store": url}
    _ingest(index, lambda show: admin.add(paths, progress=show, **options))


def rebuild(paths: Sequence[Path], index: str, embed: bool, url: str | None) -> None:
    """Put files and folders in place of what the index holds."""
    options: dict[str, Any] = {"index": index, "embed": embed, "store": url}
    _ingest(index, lambda show: admin.rebuild(paths, progress=show, **options))


def search(text: str, index: str, k: int, mode: str, url: str | None) -> None:
    """Print the `k` best hits: rank, score, id, title, and the beginning of the text."""
    query = Query(text, index=index, k=k, mode=cast("Mode", mode))
    hits = asyncio.run(admin.search(query, store=url))
    console = Console(highlight=False)
    for rank, hit in enumerate(hits, start=1):
        head = Text.assemble((f"{rank}. ", "bold"), f"{hit.score:.2f}  ", (hit.id, "cyan"))
        console.print(head.append(f"  {hit.title or ''}"))
        body = Text(" ".join(hit.text.split()))
        body.truncate(3 * console.width, overflow="ellipsis")
        console.print(body)
    if not hits:
        typer.echo(f"nothing in {index} matches", err=True)


def list_indexes(url: str | None) -> None:
    """Print each index with its documents and its size."""
    infos = asyncio.run(admin.list_indexes(store=url))
    for info in infos:
        typer.echo(f"{info.name}  {info.documents} documents  {info.bytes / 1e6:.1f} MB")
    if not infos:
        typer.echo("no index yet; make one with: phloem index add PATH", err=True)


def show(index: str, sample: int, url: str | None) -> None:
    """Print what is known of an index, and its first documents."""
    details = asyncio.run(admin.show(index, sample=sample, store=url))
    info = details.info
    vectors = f"{info.dims} dimensions by {info.embedder}" if info.dims else "none"
    typer.echo(f"{info.name}: {info.documents} documents, {info.bytes / 1e6:.1f} MB")
    typer.echo(f"vectors: {vectors}\nin: {details.source}")
    for document in details.sample:
        typer.echo(f"\n{document.id}  {document.title or ''}\n{document.text}")


def delete(index: str, ids: Sequence[str], url: str | None) -> None:
    """Delete documents, or the whole index where no id is given."""
    if ids:
        gone = asyncio.run(admin.delete(ids, index=index, store=url))
        typer.echo(f"{index}: {gone} of {len(ids)} documents deleted")
    else:
        asyncio.run(admin.drop(index, store=url))
        typer.echo(f"{index}: deleted")


def _model(named: str) -> type:
    path, _, name = named.partition(":")
    found = getattr(load_module(Path(path)), name, None) if name else None
    if not isinstance(found, type):
        raise ConfigError(f"{named!r} names no class", hint="write FILE.py:MODEL")
    return found


def _ingest(
    index: str,
    work: Callable[[Callable[[Progress], None]], Coroutine[Any, Any, IngestReport]],
) -> None:
    """Do `work`, which reports to the callback it is given, and print what it did."""
    console = Console(stderr=True)
    columns = (
        TextColumn("indexing {task.fields[file]}"),
        BarColumn(),
        TextColumn("{task.fields[rate]:.0f} passages/s"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, file="", rate=0.0)

        def draw(state: Progress) -> None:
            done, total = state.bytes_done, state.bytes_total
            bar.update(task, completed=done, total=total, file=state.file, rate=state.rate)

        report = asyncio.run(work(draw))
    state = report.progress
    typer.echo(
        f"{index}: {state.added} passages added, {state.unchanged} unchanged, "
        f"{state.removed} removed, from {state.files_done} files in {state.seconds:.1f} s "
        f"({state.rate:.0f} passages/s)"
    )
    if report.failed:
        reasons = "".join(f"\n  {what}: {why}" for what, why in report.failed)
        raise RetrievalError(
            f"{len(report.failed)} could not be added to {index}:{reasons}",
            hint="the others are stored; mend these and add the same paths again",
        )
