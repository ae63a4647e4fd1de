"""`phloem trace-proxy` and `phloem trace list|show|diff|replay|rewind|export|ui`.

What lives here: from arguments to readers, and what is printed. What does not: recording and
reading (`server/trace`) and the pages (`server/viewer`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import typer
import uvicorn
from rich.console import Console
from rich.text import Text

from phloem.errors import ConfigError, JournalError
from phloem.server.trace.options import Options, parse_listen, parse_sink, parse_upstream
from phloem.server.trace.proxy import serve
from phloem.server.trace.reader import TraceFilter
from phloem.server.trace.readers.opened import open_reader
from phloem.server.trace.readers.remote import RemoteReader
from phloem.server.trace.record import Exchange, RunTrace, Status, to_json
from phloem.server.trace.replay import replay
from phloem.server.trace.show import exchange_line, run_tree, summary_line
from phloem.server.trace.steps import Step, steps_of
from phloem.server.viewer.app import create_viewer
from phloem.server.viewer.compare import pairs_of
from phloem.server.viewer.render import render_run

__all__ = ["diff", "export", "list_traces", "proxy", "replay_trace", "rewind", "show", "ui"]


def proxy(
    upstream: str,
    to: Sequence[str],
    listen: str,
    bodies: str,
    max_body: int,
    redact: Sequence[str],
    spool: Path | None,
    log_level: str,
) -> None:
    """Run the proxy until a stop signal. Raises `ConfigError` for whatever can't work."""
    host, port = parse_listen(listen)
    if log_level not in {"debug", "info", "warning", "error"}:
        raise ConfigError(f"there is no log level {log_level!r}")
    serve(
        Options(
            upstream=parse_upstream(upstream),
            sinks=tuple(parse_sink(one, os.environ) for one in to),
            host=host,
            port=port,
            bodies=_share(bodies),
            max_body=max_body,
            redact=tuple(redact),
            spool=spool,
            log_level=log_level,
        )
    )


def _share(text: str) -> float:
    try:
        share = {"on": 1.0, "off": 0.0}.get(text) if text in {"on", "off"} else float(text)
    except ValueError:
        share = None
    if share is None or not 0 <= share <= 1:
        raise ConfigError(f"--bodies {text!r} is wrong", hint="on, off, or a share such as 0.1")
    return share


def list_traces(source: str, wanted: Mapping[str, Any], limit: int) -> None:
    """Print a line for each trace that matches."""
    if wanted["status"] not in {None, *get_args(Status)}:
        raise ConfigError(
            f"there is no status {wanted['status']!r}", hint=", ".join(get_args(Status))
        )
    page = open_reader(source, os.environ).list(TraceFilter(**wanted), limit=limit)
    console = _console()
    for one in page.items:
        console.print(summary_line(one), soft_wrap=True)
    if page.next is not None:
        total = f" of {page.total}" if page.total is not None else ""
        console.print(f"the newest {len(page.items)}{total}; --limit shows more")


def show(source: str, trace: str) -> None:
    """Print a trace as a tree."""
    _console().print(run_tree(_load(source, trace)), soft_wrap=True)


def diff(old_source: str, old: str, new_source: str, new: str) -> None:
    """Print both runs' steps side by side; exit with 1 if they differ."""
    before, after = _load(old_source, old), _load(new_source, new)
    console = _console()
    old_steps, new_steps = steps_of(before), steps_of(after)
    if old_steps or new_steps:
        same = _diff_steps(console, old_steps, new_steps)
    else:
        same = _diff_exchanges(console, before.exchanges, after.exchanges)
    if before.status != after.status:
        same = False
        console.print(f"status: {before.status} -> {after.status}")
    if not same:
        raise typer.Exit(1)


def _diff_steps(console: Console, old: Sequence[Step], new: Sequence[Step]) -> bool:
    same = True
    for pair in pairs_of(old, new):
        one = pair.new or pair.old
        assert one is not None
        line = Text("= " if pair.same else "! ", style="green" if pair.same else "bold red")
        line.append(f"{one.path + ' ' if one.path else ''}{one.kind} {one.name or ''}")
        line.append(f"  {_took(pair.old)} -> {_took(pair.new)}", style="dim")
        console.print(line, soft_wrap=True)
        if not pair.same:
            same = False
            _sides(console, "prompt", _prompt(pair.old, pair.new), _prompt(pair.new, pair.old))
            _sides(console, "output", _came(pair.old), _came(pair.new))
    return same


def _diff_exchanges(console: Console, old: Sequence[Exchange], new: Sequence[Exchange]) -> bool:
    same = len(old) == len(new)
    for number in range(max(len(old), len(new))):
        one = old[number] if number < len(old) else None
        two = new[number] if number < len(new) else None
        same &= _compare(console, one, two)
    return same


def _compare(console: Console, old: Exchange | None, new: Exchange | None) -> bool:
    equal = (
        old is not None
        and new is not None
        and (old.status, old.output, old.finish_reason)
        == (new.status, new.output, new.finish_reason)
    )
    for mark, one in (("-", old), ("+", new)):
        if one is not None:
            style = "green" if equal else "bold red"
            console.print(Text(f"{mark} ", style=style).append(exchange_line(one)), soft_wrap=True)
    if not equal:
        _sides(console, "output", old.output if old else None, new.output if new else None)
    return equal


def _sides(console: Console, what: str, old: str | None, new: str | None) -> None:
    if old == new:
        return
    for mark, text, style in (("-", old, "red"), ("+", new, "green")):
        if text is not None:
            console.print(Text(f"    {mark} {what}: {text}", style=style), soft_wrap=True)


def _took(step: Step | None) -> str:
    took = step.duration_ms if step is not None else None
    return "none" if took is None else f"{took:.1f} ms"


def _came(step: Step | None) -> str | None:
    if step is None:
        return None
    if step.error is not None:
        return f"{step.error[0]}: {step.error[1]}"
    if step.kind == "retrieve":
        return ", ".join(str(hit["id"]) for hit in step.hits)
    return step.text or json.dumps(step.value, ensure_ascii=False)


def _prompt(step: Step | None, other: Step | None) -> str | None:
    """The prompt from where it differs."""
    if step is None:
        return None
    there = other.prompt if other is not None else ""
    equal = zip(step.prompt, there, strict=False)
    at = next((at for at, (one, two) in enumerate(equal) if one != two), len(there))
    begin = max(0, at - 40)
    return ("…" if begin else "") + step.prompt[begin : begin + 400]


def replay_trace(source: str, trace: str, upstream: str, key_from: str | None) -> None:
    """Send a trace's requests again and print what differs; exit with 1 if anything does."""
    key = os.environ.get(key_from) if key_from else None
    if key_from and key is None:
        raise ConfigError(f"the environment has no {key_from}")
    parse_upstream(upstream)
    console = _console()
    same = True
    for one in replay(_load(source, trace), upstream, key):
        if one.problem is not None:
            assert one.old is not None
            console.print(Text(f"? {one.old.method} {one.old.path} not sent: {one.problem}"))
            same = False
        elif one.old is None:
            assert one.new is not None
            console.print(Text("+ ").append(exchange_line(one.new)), soft_wrap=True)
            _sides(console, "output", None, one.new.output)
        else:
            same &= _compare(console, one.old, one.new)
    if not same:
        raise typer.Exit(1)


def rewind(
    source: str, trace: str, seq: int, path: str, prompt: Sequence[str], value: str | None
) -> None:
    """Rewind a run on the server that has it, and print the new run's id."""
    server = open_reader(source, os.environ)
    if not isinstance(server, RemoteReader):
        raise ConfigError(
            f"{source} holds traces that were kept",
            hint="only the server that ran a program can rewind it: give its address",
        )
    body: dict[str, Any] = {"path": path, "seq": seq}
    if prompt:
        body["prompt"] = [None if text == "-" else text for text in prompt]
    if value is not None:
        body["set"] = _json_or_text(value)
    run = quote(_load(source, trace).id, safe="")
    reply = server.post(f"/v1/runs/{run}/rewind", json.dumps(body).encode())
    answer = reply.json()
    if reply.is_error:
        raise JournalError(answer["error"]["message"], hint=answer["error"].get("hint"))
    typer.echo(answer["id"])


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def export(source: str, trace: str, out: Path) -> None:
    """Write a trace as a page that needs nothing else, or as JSON, by the file's name."""
    if out.suffix not in {".html", ".json"}:
        raise ConfigError(f"{out} is neither .html nor .json")
    run = _load(source, trace)
    if out.suffix == ".json":
        text = json.dumps(to_json(run), ensure_ascii=False, indent=1)
    else:
        text = render_run(run, standalone=True)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} can't be written: {error}") from error


def ui(source: str, host: str, port: int) -> None:
    """Show the traces of a source in a browser until a stop signal."""
    app = create_viewer(open_reader(source, os.environ), host=host)
    typer.echo(f"traces of {source}: http://{host}:{port}/traces")
    uvicorn.run(app, host=host, port=port, log_level="warning")


def _load(source: str, trace: str) -> RunTrace:
    reader = open_reader(source, os.environ)
    if trace == "last":
        newest = reader.list(TraceFilter(), limit=1).items
        if not newest:
            raise ConfigError(f"{source} holds no traces yet")
        trace = newest[0].id
    return reader.get(trace)


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)
