"""Finding the heads of requests in a client's bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.trace.relay.requests import RequestFraming, Upstream

GET = b"GET /a HTTP/1.1\r\nHost: here\r\nX-A:  b \r\n\r\n"
POST = b"POST /b?c HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\n\r\n"
CHUNKED = b"POST /d HTTP/1.1\r\nHOST:here\r\ntransfer-encoding: chunked\r\n\r\n"
REST = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nsum: 1\r\n\r\n"
UPGRADE = b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"


def split(*pieces: bytes) -> list[tuple[bool, bytes]]:
    framing = RequestFraming()
    return [part for piece in pieces for part in framing.split(piece)]


@given(st.lists(st.integers(0, 300), max_size=12))
def test_bytes_stay_whatever_the_pieces(cuts: list[int]) -> None:
    """However a connection's bytes are cut, they come out whole, in order, with every head."""
    data = GET + POST + b"12345" + CHUNKED + REST + GET
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = split(*(data[a:b] for a, b in pairwise(borders) if a < b))
    assert b"".join(part for _, part in parts) == data
    assert [part for is_head, part in parts if is_head] == [GET, POST, CHUNKED, GET]


def test_a_body_passes_before_it_is_whole() -> None:
    """Only a head is held back; the first bytes of a body go on at once."""
    framing = RequestFraming()
    assert list(framing.split(POST[:10])) == []
    assert list(framing.split(POST[10:] + b"1")) == [(True, POST), (False, b"1")]
    assert list(framing.split(b"2")) == [(False, b"2")]


@pytest.mark.parametrize(
    "data",
    [
        b"not http at all\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\nmore",
        b"\x16\x03\x01 tls",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000,
    ],
)
def test_what_is_no_request_passes_as_it_is(data: bytes) -> None:
    """Bytes that can't be parsed are the upstream's to judge."""
    assert b"".join(part for _, part in split(data, b"then this")) == data + b"then this"


def test_after_an_upgrade_bytes_are_not_held_back() -> None:
    """A websocket frame has no line end to wait for."""
    parts = split(UPGRADE, b"\x81\x85abcdhello")
    assert parts == [(True, UPGRADE), (False, b"\x81\x85abcdhello")]


def test_only_the_host_and_the_target_change() -> None:
    """The host names the upstream, its path goes before the target, and all else stays."""
    to = Upstream("up.example", 8443, tls=True, prefix="/base")
    assert to.rewrite(GET) == GET.replace(b"here", b"up.example:8443").replace(b" /a", b" /base/a")
    assert Upstream("up", 80).rewrite(CHUNKED) == CHUNKED.replace(b":here", b":up")
    with_host_in_body = b"POST / HTTP/1.1\r\nHost: x\r\nX-Host: x\r\n\r\n"
    assert Upstream("up", 80).rewrite(with_host_in_body).count(b"up") == 1
