"""`phloem index`: documents into an index, and out of it.

What lives here: progress and printing. What does not: reading files (`retrieval/ingest`) and
the indexes; the commands work on whichever index the environment names, embedded or a server
(see `retrieval/defaults.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from phloem.errors import RetrievalError
from phloem.retrieval import EmbeddedIndex, Query, default_retriever
from phloem.retrieval.elastic.server import ServerRetriever
from phloem.retrieval.ingest.pipeline import Progress, add_files

__all__ = ["add", "delete", "list_indexes", "search", "show"]

AnyIndex = EmbeddedIndex | ServerRetriever
T = TypeVar("T")


def add(paths: Sequence[Path], index: str) -> None:
    """Add files and folders with a progress bar. Raises `RetrievalError` if some failed."""
    console = Console(stderr=True)
    columns = (TextColumn("indexing {task.fields[file]}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, file="")

        def show(state: Progress) -> None:
            bar.update(task, completed=state.bytes_done, total=state.bytes_total, file=state.file)

        report = _with_index(lambda chosen: add_files(chosen, paths, index=index, progress=show))
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


def search(text: str, index: str, k: int) -> None:
    """Print the `k` best hits: rank, score, id, title, and the beginning of the text."""
    hits = _with_index(lambda chosen: chosen.search(Query(text, index=index, k=k)))
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

    async def listed(chosen: AnyIndex) -> None:
        infos = await chosen.indexes()
        for info in infos:
            typer.echo(f"{info.name}  {info.documents} documents  {info.bytes / 1e6:.1f} MB")
        if not infos:
            typer.echo(f"no index in {chosen.source}; make one with: phloem index add PATH")

    _with_index(listed)


def show(index: str, ids: Sequence[str]) -> None:
    """Print documents whole. Raises `RetrievalError` naming those that do not exist."""
    found = _with_index(lambda chosen: chosen.get(ids, index=index))
    missing = set(ids) - {document.id for document in found}
    for document in found:
        typer.echo(f"{document.id}  {document.title or ''}\n{document.text}\n")
    if missing:
        raise RetrievalError(
            f"index {index} has no document {', '.join(sorted(missing))}",
            hint=f"find ids with: phloem index search WORDS --index {index}",
        )


def delete(index: str, ids: Sequence[str]) -> None:
    """Delete documents, or the whole index where no id is given."""
    if ids:
        gone = _with_index(lambda chosen: chosen.delete(ids, index=index))
        typer.echo(f"{index}: {gone} of {len(ids)} documents deleted")
    else:
        _with_index(lambda chosen: chosen.drop(index))
        typer.echo(f"{index}: deleted")


def _with_index(work: Callable[[AnyIndex], Awaitable[T]]) -> T:
    """Run `work` on the default index and close it."""

    async def opened() -> T:
        async with aclosing(default_retriever()) as chosen:
            return await work(chosen)

    return asyncio.run(opened())
