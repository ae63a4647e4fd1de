"""Quotations: copied from a passage, with their place."""

from __future__ import annotations

import pytest

import phloem as ph
from phloem.errors import ConstraintError
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits

DOCS = Hits((Hit("a", "The sky is blue today.", 2.0), Hit("b", "Grass is green, is green.", 1.0)))


def test_a_quote_knows_its_place() -> None:
    """The value is the text, with document and offsets of every place it stands at."""

    @ph.function
    def program(s):
        s += "Evidence: " + ph.quote("evidence", DOCS, max_tokens=40)
        return s["evidence"]

    state = program.run(backend=ScriptedBackend(["is green"]))
    quote = state.value
    assert (quote, quote.document, quote.start, quote.end) == ("is green", "b", 6, 14)
    assert [(span.document, span.start) for span in quote.spans] == [("b", 6), ("b", 16)]
    assert DOCS[1].text[quote.start : quote.end] == quote
    assert program.graph.nodes["gen:evidence"].kind == "gen"


def test_nothing_to_quote_from() -> None:
    """Quoting from no passages is refused before the engine is asked."""

    @ph.function
    def program(s):
        s += ph.quote("evidence", [])

    with pytest.raises(ConstraintError, match="no passage"):
        program.run(backend=ScriptedBackend())
