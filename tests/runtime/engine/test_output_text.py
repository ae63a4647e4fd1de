"""What may be shown, and where a text stops."""

from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.runtime.engine.output_text import OutputText


def run(tokens, stops=(), patterns=(), lead=0, free=0):
    """Pieces shown, the final text, the bytes left over, and the tokens kept."""
    text = OutputText(tuple(s.encode() for s in stops), tuple(map(regex.compile, patterns)))
    text.skip(lead)
    pieces, kept = [], 0
    for i, token in enumerate(tokens):
        ended = text.push(token, seek=i >= free)
        if ended:
            break
        piece = text.take()
        if piece is not None:
            pieces.append(piece.text)
            assert piece.first == kept
            kept = piece.last
    last, rest = text.finish()
    pieces.append(last.text)
    assert text.shown == "".join(pieces)
    return pieces, text, rest, last.last


def split(data, cuts):
    """`data` cut into tokens at some of its byte offsets."""
    edges = [0, *sorted({c % (len(data) + 1) for c in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 200), max_size=30)


@settings(deadline=None)
@given(st.text(alphabet="aé日🦊👩‍🚀", max_size=20), CUTS)
def test_pieces_are_whole_characters_and_join_to_the_text(text, cuts):
    """However a text is cut into tokens, no piece has a broken character and nothing is lost."""
    pieces, done, rest, _ = run(split(text.encode(), cuts))
    assert done.shown == text
    assert rest == b""
    assert not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None)
@given(
    st.text(alphabet="ab", max_size=30),
    CUTS,
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
)
def test_stops_are_found_across_token_borders(text, cuts, stops):
    """The text ends before the first stop that is completed, and no piece shows part of it."""
    tokens = split(text.encode(), cuts)
    pieces, done, rest, kept = run(tokens, stops)
    expected, which = text, None
    for end in range(len(tokens) + 1):
        seen = b"".join(tokens[:end]).decode()
        found = [(seen.find(s), -len(s), s) for s in stops if s in seen]
        if found:
            at, _, which = min(found)
            expected = text[:at]
            break
    assert "".join(pieces) == expected
    assert done.stop == which
    assert b"".join(tokens[:kept]) + rest == expected.encode()


def test_what_lies_behind_a_stop_is_never_shown():
    """A text that has ended may be taken from once more, before its end is asked for."""
    text = OutputText((b"a",))
    for data in (b"be", b"c", b"ause"):
        text.push(data)
    piece = text.take()
    assert (piece.text, piece.last) == ("bec", 2)
    assert text.finish()[0].text == ""
    assert text.shown == "bec"


def test_a_possible_beginning_of_a_stop_is_held_back():
    """What may turn out to be a stop is shown only when it is clear that it is none."""
    pieces, done, _, _ = run([b"a", b"\n", b"b", b"\n", b"\nc"], stops=["\n\n"])
    assert pieces == ["a", "\nb", ""]
    assert done.stop == "\n\n"


def test_stop_patterns():
    """A stop pattern ends the text before its match, over token borders too."""
    pieces, done, rest, _ = run([b"one 1", b"2", b"3. two"], patterns=[r"\d+\."])
    assert ("".join(pieces), done.stop, rest) == ("one ", "123.", b"one ")


def test_stop_patterns_hold_back_what_may_match():
    """Digits wait for the full stop that would make them a stop."""
    pieces, _, _, _ = run([b"x", b"1", b"2", b"y"], patterns=[r"\d+\."])
    assert pieces == ["x", "12y", ""]


def test_an_unfinished_character_at_the_end_is_left_out():
    """Bytes of a character that never came are in neither the text nor the tokens kept."""
    fox = "🦊".encode()
    pieces, _, rest, kept = run([b"a", fox[:2], fox[2:3]])
    assert ("".join(pieces), rest, kept) == ("a", b"", 1)


def test_bytes_that_are_no_text_show_once_as_replacement():
    """A stray byte is shown as U+FFFD as soon as it can't become a character."""
    pieces, _, _, _ = run([b"a", b"\xff", b"b"])
    assert pieces == ["a", "\ufffd", "b", ""]


def test_a_healed_lead_is_neither_shown_nor_searched():
    """The bytes that repeat the prompt are skipped, and a stop inside of them does not count."""
    pieces, done, _, _ = run([b"://x", b"y"], stops=[":"], lead=1)
    assert ("".join(pieces), done.stop) == ("//xy", None)


def test_a_stop_before_min_tokens_does_not_count():
    """A stop text among the first tokens is ignored then and later."""
    pieces, done, _, _ = run([b"a.", b"b", b"c."], stops=["."], free=2)
    assert ("".join(pieces), done.stop) == ("a.bc", ".")


@pytest.mark.parametrize("stop", ["é", "🦊"])
def test_a_stop_of_several_bytes(stop):
    """A stop text may begin in the middle of a token and hold characters of several bytes."""
    data = f"x{stop}y".encode()
    for cut in range(len(data)):
        pieces, done, _, _ = run([data[:cut], data[cut:]], stops=[stop])
        assert ("".join(pieces), done.stop) == ("x", stop)


@settings(deadline=None)
@given(st.text(alphabet="aé日🦊", min_size=1, max_size=20), CUTS)
def test_borders_are_where_each_token_s_last_whole_character_ends(text, cuts):
    """A piece cut at its tokens' borders gives what their bytes spell, up to a split character."""
    tokens = split(text.encode(), cuts)
    output = OutputText()
    for token in tokens:
        output.push(token)
    piece, _ = output.finish()
    data = b""
    for token, border in zip(tokens, output.borders(piece), strict=True):
        data += token
        assert text[:border] == data.decode(errors="ignore")
