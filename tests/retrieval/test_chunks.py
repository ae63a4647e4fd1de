"""Chunks are whole sentences, in bounds, and lose nothing."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from phloem.retrieval.ingest.chunks import Chunking, chunks_of
from phloem.retrieval.ingest.markup import html_text, markdown_sections
from phloem.retrieval.ingest.sources import Section, Source
from phloem.retrieval.sentences import sentence_spans


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text, 0, len(text))]


def source(text: str, *sections: Section) -> Source:
    return Source("s", "s", text, sections or (Section((), 0, len(text)),))


def test_sentences_end_where_a_reader_ends_them() -> None:
    """Full stops in abbreviations, numbers and before lower case end nothing; blank lines, list
    items and closing quotes do as expected."""
    text = (
        'Dr. Smith paid 3.50 euros, e.g. for tea. "Is it?" he asked. Yes! See No. 5.\n\n'
        "A heading\n\n- first item\n- second item\n1. third"
    )
    assert sentences(text) == [
        "Dr. Smith paid 3.50 euros, e.g. for tea.",
        '"Is it?" he asked.',
        "Yes!",
        "See No. 5.",
        "A heading",
        "- first item",
        "- second item",
        "1. third",
    ]
    assert sentences("これは一つ。二つ\uff01「三つ\uff1f」四") == [
        "これは一つ。",
        "二つ\uff01",
        "「三つ\uff1f」",
        "四",
    ]
    assert sentences("  \n ") == []


TEXTS = st.text(alphabet="ab .!?\n-A1é日。", max_size=400)


@given(TEXTS)
def test_sentences_lose_only_white_space(text: str) -> None:
    """Spans are in order, apart, without outer white space, and hold every other character."""
    spans = list(sentence_spans(text, 0, len(text)))
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(text[s:e] == text[s:e].strip() != "" for s, e in spans)
    assert "".join("".join(text[s:e] for s, e in spans).split()) == "".join(text.split())


@given(TEXTS, st.integers(1, 60), st.data())
def test_chunks_cover_the_text_within_their_size(text: str, size: int, data: st.DataObject) -> None:
    """Every chunk is the interval of the source that it names, within `size`, repeats no more than
    `overlap` of the one before, and together they hold every character but white space."""
    overlap = data.draw(st.integers(0, size - 1))
    docs = list(chunks_of(source(text), Chunking(size, overlap)))
    covered, previous = set(), 0
    for doc in docs:
        place = doc.meta["chunk"]
        start, end = place["start"], place["end"]
        assert doc.text == text[start:end]
        assert 0 < end - start <= size
        assert previous - start <= overlap
        assert end > previous
        covered |= set(range(start, end))
        previous = end
    assert all(n in covered for n, char in enumerate(text) if not char.isspace())


def test_chunks_repeat_whole_sentences() -> None:
    """The next chunk begins with the last sentences of the one before, as far as they fit."""
    text = "One is here. Two is here. Three is here. Four is here. Five is here."
    docs = list(chunks_of(source(text), Chunking(size=41, overlap=15)))
    assert [doc.text for doc in docs] == [
        "One is here. Two is here. Three is here.",
        "Three is here. Four is here.",
        "Four is here. Five is here.",
    ]
    assert [doc.id for doc in docs] == ["s#0", "s#1", "s#2"]


def test_one_chunk_keeps_its_source_s_id() -> None:
    """A short text is one document with the source's own id."""
    assert [doc.id for doc in chunks_of(source("Short."), Chunking())] == ["s"]


def test_a_long_sentence_is_cut_between_words() -> None:
    """Where a sentence exceeds the size it is cut at white space, a long word anywhere."""
    docs = list(chunks_of(source("aaa bbb ccc dddddddddddd"), Chunking(size=8, overlap=0)))
    assert [doc.text for doc in docs] == ["aaa bbb", "ccc", "dddddddd", "dddd"]


def test_chunks_never_cross_a_heading() -> None:
    """Sections are chunked apart and carry the headings above them."""
    text = "Intro.\n# One\nFirst.\n### Deep\nSecond.\n# Two\nThird.\n"
    docs = list(chunks_of(source(text, *markdown_sections(text)), Chunking()))
    assert [(doc.title, doc.text) for doc in docs] == [
        (None, "Intro."),
        ("One", "First."),
        ("One > Deep", "Second."),
        ("Two", "Third."),
    ]


def test_html_is_what_a_reader_sees() -> None:
    """Scripts and styles are left out, blocks are lines, preformatted text keeps its spaces."""
    text, title, sections = html_text(
        "<html><head><title> A  page</title><style>p {}</style></head><body>"
        "<p>One\n two</p><div>three<br>four</div><pre>a\n  b</pre>"
        "<template>hidden</template><h2>Head <i>ing</i></h2>after &lt;tag&gt;</body>"
    )
    assert title == "A  page"
    assert text.strip() == "One two\nthree\nfour\na\n  b\nHead ing\nafter <tag>"
    assert [(s.headings, text[s.start : s.end].strip()) for s in sections] == [
        ((), "One two\nthree\nfour\na\n  b"),
        (("Head ing",), "after <tag>"),
    ]
