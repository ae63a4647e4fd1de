"""What a file holds before it is cut into chunks.

What lives here: the types between readers and chunker. What does not: formats (`readers.py`,
`markup.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phloem.errors import ConfigError

__all__ = ["Section", "Source", "UnreadableSource"]


class UnreadableSource(ConfigError):
    """A file, or one record of it, can't be read as what its name says it is."""


@dataclass(frozen=True, slots=True)
class Section:
    """The half-open interval [start, end) of a source's characters under one heading.

    `headings` are those above it, outermost first. Sections follow each other; what lies
    between them (the headings themselves) is in no section.
    """

    headings: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """One text with a name: a file, or one record of a file of records.

    `id` is where its chunks' ids begin, `file` the name of its file. `read_bytes` is how much of
    the file was read when it was made, for progress.
    """

    id: str
    file: str
    text: str
    sections: tuple[Section, ...]
    title: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    read_bytes: int = 0
