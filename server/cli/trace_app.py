"""`phloem trace` and `phloem trace-proxy` as typer sees them: names, options, help texts.

What lives here: declarations only, as in `app.py`. What does not: any work (`trace.py`).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["trace", "trace_proxy"]

trace = typer.Typer(
    help="Look at recorded runs and requests. SOURCE is a folder of JSONL files, es:URL, a "
    "journal's file, or the address of a running phloem.",
    no_args_is_help=True,
)

Source = Annotated[str, typer.Argument(help="folder, es:URL, journal file, or server address")]
TraceId = Annotated[str, typer.Argument(metavar="ID", help="a trace's id, or `last`")]


def _command(function: str, *arguments: Any) -> None:
    getattr(importlib.import_module("phloem.server.cli.trace"), function)(*arguments)


def trace_proxy(
    upstream: Annotated[str, typer.Option(help="address of the server behind the proxy")],
    to: Annotated[
        list[str],
        typer.Option(help="sink, may be repeated: jsonl:FOLDER, es:URL, otlp[:URL], stdout"),
    ],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT")] = "127.0.0.1:8100",
    bodies: Annotated[
        str, typer.Option(help="record bodies: on, off, or the share to sample, such as 0.1")
    ] = "on",
    max_body: Annotated[int, typer.Option(help="bytes kept of one body")] = 2 * 2**20,
    redact: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="what it matches becomes ***")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(help="folder of what Elasticsearch does not have yet")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Stand in front of a server, pass everything on unchanged, and record it.

    In front of phloem whole runs are recorded, event by event; in front of any OpenAI-compatible
    server its requests. Secrets are taken out before anything is kept.
    """
    _command("proxy", upstream, to, listen, bodies, max_body, redact or [], spool, log_level)


@trace.command("list")
def trace_list(
    source: Source,
    program: Annotated[str | None, typer.Option(help="of this program")] = None,
    status: Annotated[str | None, typer.Option(help="succeeded, failed, cancelled, …")] = None,
    error: Annotated[str | None, typer.Option(help="that failed with this type of error")] = None,
    min_ms: Annotated[float | None, typer.Option(help="that took at least this long")] = None,
    text: Annotated[str | None, typer.Option(help="that hold this text")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000)] = 20,
) -> None:
    """List traces, newest first."""
    wanted = {
        "program": program, "status": status, "error_type": error, "min_ms": min_ms, "text": text
    }  # fmt: skip
    _command("list_traces", source, wanted, limit)


@trace.command("show")
def trace_show(source: Source, id: TraceId = "last") -> None:  # noqa: A002
    """Show a run as a tree: its steps, its requests, and the line that failed."""
    _command("show", source, id)


@trace.command("diff")
def trace_diff(
    source: Source,
    old: TraceId,
    new: TraceId,
    other: Annotated[
        str | None, typer.Option("--in", metavar="SOURCE", help="where the second trace is")
    ] = None,
) -> None:
    """Compare two runs step by step: prompts, outputs, times. Exit code 1 if they differ."""
    _command("diff", source, old, other or source, new)


@trace.command("replay")
def trace_replay(
    source: Source,
    id: TraceId,  # noqa: A002
    upstream: Annotated[str, typer.Option(help="the server to send the requests to")],
    key_from: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="environment variable with its key")
    ] = None,
) -> None:
    """Send a trace's requests to another server and compare. Exit code 1 if outputs differ."""
    _command("replay_trace", source, id, upstream, key_from)


@trace.command("rewind")
def trace_rewind(
    source: Source,
    id: TraceId,  # noqa: A002
    seq: Annotated[int, typer.Option(min=0, help="number of the step's effect on its branch")],
    path: Annotated[str, typer.Option(help="the branch, such as 0.1")] = "",
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="new text for the step's prompt; one for each text, - for what stays"),
    ] = None,
    value: Annotated[
        str | None, typer.Option("--set", help="the step's new value: JSON, or plain text")
    ] = None,
) -> None:
    """Repeat a run of a running phloem up to a step, and go on from there. Prints the new run."""
    _command("rewind", source, id, seq, path, prompt or [], value)


@trace.command("export")
def trace_export(
    source: Source,
    id: TraceId,  # noqa: A002
    out: Annotated[Path, typer.Option("--out", "-o", help="FILE.html or FILE.json")],
) -> None:
    """Write a trace to one file that needs nothing else: a page, or its JSON."""
    _command("export", source, id, out)


@trace.command("ui")
def trace_ui(
    source: Source,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 8200,
) -> None:
    """Show traces in a browser: lists, graphs, timelines, steps."""
    _command("ui", source, host, port)
