"""Files to sources, by the ending of their names.

What lives here: one reader per format, and finding the files. What does not: chunks
(`chunks.py`).

    .txt .text .log .rst     one text
    .md .markdown            one text, sections by headings
    .html .htm               the visible text, sections by headings
    .jsonl .ndjson           one record a line: "text", and if present "id" and "title"; the
                             rest is metadata
    .csv .tsv                likewise, one record a row, with a header
    .pdf                     one text, a section a page (needs the extra `phloem[pdf]`)
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.errors import ConfigError
from phloem.retrieval.ingest.chunks import CHUNK
from phloem.retrieval.ingest.markup import html_text, markdown_sections
from phloem.retrieval.ingest.sources import Section, Source, UnreadableSource
from phloem.retrieval.lazy import load

__all__ = ["FILE_TYPES", "SourceFile", "find_files", "read_file"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and the name under which it is known in the index.

    The name is the path below the folder that was given, with that folder's own name before
    it, so that it does not depend on the working directory.
    """

    path: Path
    name: str
    bytes: int


def find_files(paths: Iterable[Path | str]) -> list[SourceFile]:
    """All files of known types in `paths`, in order of name; hidden ones are left out.

    Raises `ConfigError` for a path that does not exist, a file of an unknown type that was
    given itself, and two files that would have the same name.
    """
    found: dict[str, SourceFile] = {}
    for given in map(Path, paths):
        if given.is_dir():
            root = given.resolve()
            inside = [p for p in sorted(root.rglob("*")) if p.is_file() and not _hidden(p, root)]
            known = [path for path in inside if path.suffix.lower() in FILE_TYPES]
            named = {f"{root.name}/{path.relative_to(root).as_posix()}": path for path in known}
        elif given.is_file() and given.suffix.lower() in FILE_TYPES:
            named = {given.name: given}
        elif given.is_file():
            raise ConfigError(
                f"{given} is of an unknown type", hint=f"known are {' '.join(sorted(FILE_TYPES))}"
            )
        else:
            raise ConfigError(f"no file or folder {given}", hint="check the path")
        for name, path in named.items():
            if name in found and found[name].path.resolve() != path.resolve():
                raise ConfigError(
                    f"{found[name].path} and {path} would both be called {name!r} in the index",
                    hint="add them to different indexes, or give a folder that holds both",
                )
            found[name] = SourceFile(path, name, path.stat().st_size)
    return [found[name] for name in sorted(found)]


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def read_file(file: SourceFile) -> Iterator[Source | UnreadableSource]:
    """The sources in `file`; a record that can't be read comes as the error that says why.

    Raises `UnreadableSource` if the file as a whole can't be read, `ConfigError` if a package
    for its type is missing.
    """
    try:
        yield from FILE_TYPES[file.path.suffix.lower()](file)
    except OSError as error:
        raise UnreadableSource(f"{file.path}: {error.strerror}") from error


def _decoded(file: SourceFile) -> str:
    raw = file.path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableSource(
            f"{file.path} is not UTF-8 (byte {error.start})",
            hint=f"iconv -f latin1 -t utf-8 {file.path.name}",
        ) from error


def _read_text(file: SourceFile) -> Iterator[Source]:
    text = _decoded(file)
    yield Source(file.name, file.name, text, (Section((), 0, len(text)),), None, {}, file.bytes)


def _read_markdown(file: SourceFile) -> Iterator[Source]:
    text = _decoded(file)
    yield Source(file.name, file.name, text, markdown_sections(text), None, {}, file.bytes)


def _read_html(file: SourceFile) -> Iterator[Source]:
    text, title, sections = html_text(_decoded(file))
    yield Source(file.name, file.name, text, sections, title, {}, file.bytes)


def _read_pdf(file: SourceFile) -> Iterator[Source]:
    reader = load("pypdf:PdfReader")
    wrong = load("pypdf.errors:PyPdfError")
    try:
        pages = [page.extract_text() for page in reader(file.path).pages]
    except wrong as error:
        raise UnreadableSource(f"{file.path} can't be read as PDF: {error}") from error
    sections, text = [], ""
    for number, page in enumerate(pages, start=1):
        sections.append(Section((f"page {number}",), len(text), len(text) + len(page)))
        text += page + "\n"
    if not text.strip():
        raise UnreadableSource(
            f"{file.path} holds no text", hint="scanned pages need character recognition first"
        )
    yield Source(file.name, file.name, text, tuple(sections), None, {}, file.bytes)


def _read_jsonl(file: SourceFile) -> Iterator[Source | UnreadableSource]:
    read = 0
    with file.path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            read += len(raw)
            if not raw.strip():
                continue
            try:
                record = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
            except ValueError as error:
                yield UnreadableSource(f"{file.path}:{number}: not JSON: {error}")
                continue
            if not isinstance(record, dict):
                yield UnreadableSource(f"{file.path}:{number}: not a JSON object")
                continue
            yield _record(file, number, record, read)


def _read_table(file: SourceFile) -> Iterator[Source | UnreadableSource]:
    separator = "\t" if file.path.suffix.lower() == ".tsv" else ","
    rows = csv.DictReader(io.StringIO(_decoded(file), newline=""), delimiter=separator)
    if "text" not in (rows.fieldnames or ()):
        raise UnreadableSource(
            f"{file.path} has no column 'text'; it has: {', '.join(rows.fieldnames or ())}",
            hint="name the column of the passages 'text' in the header",
        )
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            yield UnreadableSource(f"{file.path}:{rows.line_num}: not as many cells as columns")
            continue
        filled = {name: cell for name, cell in row.items() if cell != ""}
        yield _record(file, number, filled, file.bytes)


def _record(
    file: SourceFile, number: int, record: Mapping[str, Any], read: int
) -> Source | UnreadableSource:
    """A source from one record, or what is wrong with it."""
    text, title, id_ = (record.get(name) for name in ("text", "title", "id"))
    place = f"{file.path}:{number}"
    if not isinstance(text, str) or not text.strip():
        return UnreadableSource(f"{place}: no 'text'; it has: {', '.join(record)}")
    if title is not None and not isinstance(title, str):
        return UnreadableSource(f"{place}: 'title' is not a string")
    if id_ is not None and not isinstance(id_, str | int):
        return UnreadableSource(f"{place}: 'id' is neither a string nor a number")
    if CHUNK in record:
        return UnreadableSource(f"{place}: the name {CHUNK!r} is reserved; rename that field")
    meta = {name: value for name, value in record.items() if name not in ("text", "title", "id")}
    name = f"{file.name}:{number}" if id_ is None else str(id_)
    return Source(name, file.name, text, (Section((), 0, len(text)),), title, meta, read)


_Reader = Callable[[SourceFile], Iterator[Source | UnreadableSource]]

FILE_TYPES: Mapping[str, _Reader] = {
    ".txt": _read_text,
    ".text": _read_text,
    ".log": _read_text,
    ".rst": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".pdf": _read_pdf,
}
"""The reader of each ending."""
