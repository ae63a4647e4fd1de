"""Sections of Markdown and HTML.

What lives here: finding headings, and HTML to text. What does not: files (`readers.py`).
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

from phloem.retrieval.ingest.sources import Section

__all__ = ["html_text", "markdown_sections", "sections_at"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "br", "dd", "div", "dl", "dt"}
    | {"figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header"}
    | {"hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tbody", "td", "th"}
    | {"thead", "tr", "ul"}
)

Heading = tuple[int, int, int, str]
"""A heading's interval of characters, its level from 1, and its text."""


def sections_at(headings: list[Heading], length: int) -> tuple[Section, ...]:
    """The sections of a text of `length` characters with `headings` in order."""
    sections = []
    path: list[tuple[int, str]] = []
    start = 0
    for heading_start, heading_end, level, text in [*headings, (length, length, 0, "")]:
        if heading_start > start:
            sections.append(Section(tuple(name for _, name in path), start, heading_start))
        path = [(above, name) for above, name in path if above < level]
        path.append((level, text))
        start = heading_end
    return tuple(sections)


def markdown_sections(text: str) -> tuple[Section, ...]:
    """Sections under ATX headings ("## Name"), those inside fenced code left alone
    (https://spec.commonmark.org)."""
    headings: list[Heading] = []
    fence: str | None = None
    position = 0
    for line in text.splitlines(keepends=True):
        fenced = _FENCE.match(line)
        if fenced and (fence is None or fenced[1].startswith(fence)):
            fence = fenced[1] if fence is None else None
        elif fence is None and (found := _HEADING.match(line.rstrip("\r\n"))):
            headings.append((position, position + len(line), len(found[1]), found[2]))
        position += len(line)
    return sections_at(headings, len(text))


def html_text(markup: str) -> tuple[str, str | None, tuple[Section, ...]]:
    """The text a reader of the page sees, its title, and its sections under h1 to h6."""
    parser = _TextParser()
    parser.feed(markup)
    parser.close()
    text = "".join(parser.parts)
    return text, parser.title.strip() or None, sections_at(parser.headings, len(text))


class _TextParser(HTMLParser):
    """Collects visible text, one block a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.headings: list[Heading] = []
        self.title = ""
        self._length = 0
        self._hidden = 0
        self._in_title = False
        self._verbatim = 0
        self._heading_start = 0

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        if tag in _SKIPPED:
            self._hidden += 1
        if tag in _BLOCKS:
            self._break()
        if tag == "pre":
            self._verbatim += 1
        if _is_heading(tag):
            self._heading_start = self._length

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in _SKIPPED:
            self._hidden = max(0, self._hidden - 1)
        if tag in _BLOCKS:
            self._break()
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if _is_heading(tag):
            name = " ".join("".join(self.parts)[self._heading_start :].split())
            if name:
                self.headings.append((self._heading_start, self._length, int(tag[1]), name))

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._hidden:
            text = data if self._verbatim else re.sub(r"\s+", " ", data)
            if not self._verbatim and (not self.parts or self.parts[-1].endswith(("\n", " "))):
                text = text.lstrip(" ")
            self._put(text)

    def _break(self) -> None:
        if self.parts and not self.parts[-1].endswith("\n"):
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self._length += len(text)


def _is_heading(tag: str) -> bool:
    return len(tag) == 2 and tag[0] == "h" and tag[1] in "123456"
