"""The tantivy schema of an index, its tokenizer, and documents to and from it.

What lives here: what a stored document looks like. What does not: metadata terms
(`facts.py`), vectors (`vectors.py`), files (`layout.py`).
"""

from __future__ import annotations

import json
from typing import Any

import tantivy

from phloem.retrieval.base import Document, Hit
from phloem.retrieval.documents import fingerprint
from phloem.retrieval.embedded.facts import facts_of

__all__ = [
    "NO_ROW",
    "TEXT_FIELDS",
    "register",
    "schema",
    "stored_document",
    "to_document",
    "to_hit",
    "value_of",
    "words",
]

TEXT_FIELDS = ("text", "title")
TITLED = "\0\0title"
"""The fact of every document that has a title: no field of metadata begins like this."""
NO_ROW = 2**63 - 1
"""The row number of a document without a vector."""

# Word boundaries close to Unicode's (UAX #29), which the servers' standard analyzer follows:
# a Han or Hiragana character is a word of its own; letters, digits and marks run together,
# across an inner apostrophe or full stop too.
_WORD = (
    r"[\p{Han}\p{Hiragana}]"
    r"|(?:[\p{L}\p{N}\p{M}_--[\p{Han}\p{Hiragana}]])+"
    r"(?:['\x{2019}.](?:[\p{L}\p{N}\p{M}_--[\p{Han}\p{Hiragana}]])+)*"
)
_TOKENIZER = "words"


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_WORD))
    return (
        builder.filter(tantivy.Filter.remove_long(256)).filter(tantivy.Filter.lowercase()).build()
    )


_ANALYZER = _analyzer()


def words(text: str) -> list[str]:
    """The words of `text` as the index keeps them."""
    found: list[str] = _ANALYZER.analyze(text)
    return found


def schema() -> tantivy.Schema:
    """The schema every embedded index has."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    for name in TEXT_FIELDS:
        builder.add_text_field(
            name, stored=True, tokenizer_name=_TOKENIZER, index_option="position"
        )
    builder.add_text_field("facts", stored=False, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("fingerprint", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field("meta", stored=True)
    builder.add_unsigned_field("row", stored=False, indexed=False, fast=True)
    return builder.build()


def register(index: tantivy.Index) -> tantivy.Index:
    """Give `index` the tokenizer; it is not stored with the files."""
    index.register_tokenizer(_TOKENIZER, _ANALYZER)
    return index


def stored_document(doc: Document, row: int) -> tantivy.Document:
    """`doc` as tantivy stores it; `row` is its row in the vector matrix, or `NO_ROW`."""
    stored = tantivy.Document()
    stored.add_text("id", doc.id)
    stored.add_text("text", doc.text)
    if doc.title is not None:
        stored.add_text("title", doc.title)
        stored.add_text("facts", TITLED)
    for fact in facts_of(doc.meta):
        stored.add_text("facts", fact)
    stored.add_text("fingerprint", fingerprint(doc))
    stored.add_bytes("meta", json.dumps(dict(doc.meta)).encode())
    stored.add_unsigned("row", row)
    return stored


def to_document(stored: tantivy.Document) -> Document:
    """The inverse of `stored_document`, without the vector."""
    return Document(value_of(stored, "id"), *_content(stored))


def to_hit(stored: tantivy.Document, score: float, index: str) -> Hit:
    """A stored document as a hit."""
    text, title, meta = _content(stored)
    return Hit(value_of(stored, "id"), text, score, title, index, meta)


def value_of(stored: tantivy.Document, field: str) -> str:
    """The string that every stored document has in `field`."""
    return str(stored.get_first(field))


def _content(stored: tantivy.Document) -> tuple[str, str | None, dict[str, Any]]:
    packed: Any = stored.get_first("meta")
    title: Any = stored.get_first("title")
    return value_of(stored, "text"), title, json.loads(bytes(packed))
