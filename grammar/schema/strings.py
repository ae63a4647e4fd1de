"""Patterns and formats as languages, and whether a known text is in one.

What lives here: the two ways a schema names a set of strings by a regular expression, cached.
What does not: lengths and literals (they need no language), and the expressions (formats.py).
"""

from __future__ import annotations

import functools

from llguidance import LLMatcher

from phloem.errors import ConstraintError
from phloem.grammar.engine import byte_tokenizer, consume
from phloem.grammar.regex.emit import plain_terminal
from phloem.grammar.regex.nodes import Node
from phloem.grammar.regex.parser import parse_regex
from phloem.grammar.regex.resolve import full_match, search
from phloem.grammar.schema.document import Document
from phloem.grammar.schema.formats import ANNOTATION_ONLY, FORMATS

__all__ = [
    "format_language",
    "holds",
    "is_empty",
    "matches_format",
    "matches_pattern",
    "pattern_language",
]


@functools.lru_cache(maxsize=4096)
def pattern_language(pattern: str) -> Node:
    """The strings in which the ECMA-262 expression `pattern` matches somewhere."""
    return search(parse_regex(pattern, "ecma"))


def format_language(document: Document, name: str) -> Node | None:
    """The strings of a format, or None where the dialect makes it an annotation.

    A dialect from 2019-09 on that the schema names asserts no format; a name that no dialect
    defines is an annotation everywhere.
    """
    if document.declared and document.draft >= ANNOTATION_ONLY:
        return None
    return _format(name) if name in FORMATS else None


@functools.cache
def _format(name: str) -> Node:
    return full_match(parse_regex(FORMATS[name], "ecma"))


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether the ECMA-262 expression `pattern` matches somewhere in `text`."""
    return holds(pattern_language(pattern), text)


def matches_format(document: Document, name: str, text: str) -> bool:
    """Whether `text` has the format, where the dialect asserts it."""
    language = format_language(document, name)
    return language is None or holds(language, text)


def holds(language: Node, text: str) -> bool:
    """Whether `text` is in `language`."""
    matcher = _matcher(language).deep_copy()
    return consume(matcher, text.encode()) and bool(matcher.is_accepting())


@functools.lru_cache(maxsize=1024)
def _matcher(language: Node) -> LLMatcher:
    grammar = f"start: TEXT\nTEXT: {plain_terminal(language)}\n"
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(grammar), log_level=0)
    if matcher.is_error():
        raise ConstraintError(f"a regex is too complex: {matcher.get_error().splitlines()[0]}")
    return matcher


@functools.lru_cache(maxsize=4096)
def is_empty(language: Node) -> bool:
    """Whether no text at all is in `language`."""
    matcher = _matcher(language)
    return (bool(matcher.is_stopped()) and not matcher.is_accepting()) or _dead(matcher)


def _dead(matcher: LLMatcher) -> bool:
    mask = matcher.compute_bitmask()
    return not matcher.is_accepting() and not any(mask[:32])
