"""Sources to chunks: whole sentences, under one heading, up to a size, with some overlap.

What lives here: packing. What does not: sentence borders (`retrieval/sentences.py`), files and
storing. Positions are half-open intervals of the source's characters; a chunk's text is exactly
that interval of it:

    source    |....Heading....|S1......|S2...|S3..........|S4..|S5......|
    chunk 0                   [S1       S2    S3          )
    chunk 1                                  [S3           S4   S5      )     overlap: S3
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from phloem.errors import ConfigError
from phloem.retrieval.base import Document
from phloem.retrieval.ingest.sources import Section, Source
from phloem.retrieval.sentences import Span, sentence_spans

__all__ = ["CHUNK", "Chunking", "chunks_of"]

CHUNK = "chunk"
"""The key of the metadata under which a chunk says where it comes from."""

_WORD_END = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Chunking:
    """Sizes in characters. A chunk has up to `size`; the next one repeats whole sentences of
    its end, up to `overlap`."""

    size: int = 1_000
    overlap: int = 150

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.overlap < self.size:
            raise ConfigError(
                f"chunks of {self.size} characters can't overlap by {self.overlap}",
                hint="size must be 1 or more, and overlap less than size",
            )


def chunks_of(source: Source, chunking: Chunking) -> Iterator[Document]:
    """The chunks of `source` as documents.

    A source of one chunk gives its id to it; else the ids are SOURCE#0, SOURCE#1, ... Their
    titles are the source's title and the headings above them; see `base.Document` for what is
    in their metadata.
    """
    spans = [
        (section, span)
        for section in source.sections
        for span in _packed(source.text, section, chunking)
    ]
    for number, (section, (start, end)) in enumerate(spans):
        names = ([source.title] if source.title else []) + list(section.headings)
        place = {"source": source.file, "number": number, "start": start, "end": end}
        yield Document(
            source.id if len(spans) == 1 else f"{source.id}#{number}",
            source.text[start:end],
            " > ".join(dict.fromkeys(names)) or None,
            {**source.meta, CHUNK: place},
        )


def _packed(text: str, section: Section, chunking: Chunking) -> Iterator[Span]:
    """The chunks of one section."""
    pending: list[Span] = []
    fresh = False  # whether `pending` holds more than the last chunk's end
    for span in _pieces(text, section, chunking.size):
        if fresh and span[1] - pending[0][0] > chunking.size:
            yield pending[0][0], pending[-1][1]
            pending = _overlap(pending, span, chunking)
        pending.append(span)
        fresh = True
    if fresh:
        yield pending[0][0], pending[-1][1]


def _overlap(sentences: list[Span], following: Span, chunking: Chunking) -> list[Span]:
    """The last of `sentences` that the next chunk, which begins with `following`, repeats."""
    end = sentences[-1][1]
    return [
        (start, stop)
        for start, stop in sentences
        if end - start <= chunking.overlap and following[1] - start <= chunking.size
    ]


def _pieces(text: str, section: Section, size: int) -> Iterator[Span]:
    """The sentences of a section; one longer than `size` is cut between words, or, where it has
    none, between characters."""
    for first, end in sentence_spans(text, section.start, section.end):
        start = first
        while end - start > size:
            gaps = list(_WORD_END.finditer(text, start + 1, start + size + 1))
            cut = gaps[-1].start() if gaps else start + size
            yield start, cut
            start = gaps[-1].end() if gaps else cut
        if start < end:
            yield start, end
