"""Hits as prompt text: budgets, borders of sentences, numbers, and an order that caches like."""

from __future__ import annotations

import itertools

import pytest

import phloem as ph
from phloem.errors import CompileError
from phloem.programs.api.passages import render
from phloem.retrieval.base import Hit, Hits

DOCS = Hits(
    (
        Hit("b", "Best is short.", 3.0),
        Hit("c", "Second is longer. It goes on e.g. here. And on.", 2.0, title="Two"),
        Hit("a", "Third has 3.5 of it. Then it ends.", 1.0),
    )
)


def chars(text: str) -> int:
    return len(text)


def test_numbers_are_ranks_and_sources_say_which_document() -> None:
    """[n] in the text is `sources[n - 1]`, in every order; without `cite` there are no numbers."""
    text = ph.passages(DOCS)
    assert text.startswith("[1] Best is short.\n\n[2] Two\nSecond")
    assert [hit.id for hit in text.sources] == ["b", "c", "a"]
    reverse = ph.passages(DOCS, order="reverse")
    assert reverse.startswith("[3] Third")
    assert [hit.id for hit in reverse.sources] == ["b", "c", "a"]
    stable = ph.passages(DOCS, order="stable")
    assert stable.startswith("[1] Third")
    assert [hit.id for hit in stable.sources] == ["a", "b", "c"]
    assert ph.passages(DOCS[:1], cite=False) == "Best is short."
    assert ph.passages([]) == ""


def test_an_unknown_order_is_refused() -> None:
    """The error names the orders there are."""
    with pytest.raises(CompileError, match="newest"):
        ph.passages(DOCS, order="newest")


@pytest.mark.parametrize("limit", range(0, 120, 3))
@pytest.mark.parametrize("order", ["score", "reverse", "stable"])
def test_whole_sentences_within_any_budget(order: str, limit: int) -> None:
    """Whatever the budget, the text fits it and each passage in it ends with a sentence."""
    text = render(DOCS, max_tokens=limit, order=order, count=chars)
    assert len(text) <= limit
    blocks = text.split("\n\n") if text else []
    assert len(blocks) == len(text.sources)
    for block in blocks if len(blocks) > 1 else []:
        assert block.endswith((".", "here.")), text
        assert not block.endswith(("e.g.", "3."))


def test_a_budget_below_a_sentence_cuts_the_best_at_a_word() -> None:
    """One passage without a border that fits is cut at a word; a number alone is no passage."""
    hits = [Hit("a", "a text that never ends", 1.0), Hit("b", "other", 0.5)]
    assert render(hits, max_tokens=12, count=chars) == "[1] a text"
    assert render(hits, max_tokens=4, count=chars) == ""


@pytest.mark.parametrize("limit", [None, 130, 100, 90, 80, 70, 60])
def test_stable_order_forgets_the_scores(limit: int | None) -> None:
    """The same documents are the same text, whatever their order, as long as some of each fits."""
    texts = {
        render(
            [Hit(d.id, d.text, 1.0 / n, d.title) for n, d in enumerate(order, 1)],
            max_tokens=limit,
            order="stable",
            count=chars,
        )
        for order in itertools.permutations(DOCS)
    }
    assert len(texts) == (1 if limit is None or limit >= 80 else 3)


def test_stable_order_leaves_out_the_worst() -> None:
    """Where not a sentence of each fits, the document with the lowest score goes."""
    text = render(DOCS, max_tokens=50, order="stable", count=chars)
    assert {hit.id for hit in text.sources} == {"b", "c"}
    again = [*DOCS, DOCS[0]]
    assert len(render(again, order="stable").sources) == 3
