"""What a generation has said so far: its bytes, where it must stop, what may be shown.

What lives here: `OutputText`. What does not: token stops and limits (`generation.py`).

Stop texts are sought in bytes, so they are found wherever token borders fall, also inside a
chunk of forced tokens. Text is shown in whole tokens that end in whole characters, and only
when no stop can begin in it any more; so the pieces joined are the final text, and cutting a
session after what was shown is always possible.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import regex

__all__ = ["OutputText", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Newly shown text, with the tokens that say it: the half-open range [first, last). `start` is
    where it begins in the bytes of all tokens."""

    text: str
    first: int
    last: int
    start: int = 0


class OutputText:
    """Bytes of generated tokens with stop texts and stop patterns.

    `stops` are stop texts in UTF-8, `patterns` compiled stop patterns.
    """

    def __init__(
        self, stops: tuple[bytes, ...] = (), patterns: tuple[regex.Pattern[str], ...] = ()
    ) -> None:
        self.stop: str | None = None
        """What ended the text, once it has ended."""
        self.shown = ""
        """The text taken so far."""
        self._lead = 0
        self._searched_from = 0
        self._data = bytearray()
        self._ends: list[int] = []
        self._shown = 0
        self._stops = stops
        self._patterns = patterns
        self._cut: int | None = None

    def skip(self, lead: int) -> None:
        """The first token will repeat `lead` bytes of the prompt (the healed border).

        They are neither shown nor searched.
        """
        self._lead = self._searched_from = lead

    def push(self, data: bytes, *, seek: bool = True) -> bool:
        """Add a token's bytes. True if the text has ended in them.

        Without `seek` no stop is sought in them, nor found later.
        """
        before = len(self._data)
        self._data += data
        self._ends.append(len(self._data))
        if not seek:
            self._searched_from = len(self._data)
        elif data:
            self._find_stop(before)
        return self._cut is not None

    def take(self) -> Piece | None:
        """What can be shown now and was not yet; None if nothing."""
        bound = len(self._data) - self._held_back() if self._cut is None else self._cut
        last = len(self._ends)
        while last > self._shown and not self._complete(last, bound):
            last -= 1
        if last == self._shown:
            return None
        start, first = self._start(), self._shown
        self._shown = last
        return self._piece(start, self._ends[last - 1], first)

    def finish(self) -> tuple[Piece, bytes]:
        """The rest of the text up to its end, and its last bytes where they are no whole token.

        An unfinished character at the end is left out.
        """
        end = len(self._data) if self._cut is None else self._cut
        start, first = self._start(), self._shown
        end = start + _whole(self._data[start:end])
        last = first
        while last < len(self._ends) and self._ends[last] <= end:
            last += 1
        self._shown = last
        rest_from = self._ends[last - 1] if last else 0
        return self._piece(start, end, first), bytes(self._data[rest_from:end])

    def _piece(self, start: int, end: int, first: int) -> Piece:
        text = self._data[start:end].decode("utf-8", "replace")
        self.shown += text
        return Piece(text, first, self._shown, start)

    def borders(self, piece: Piece) -> list[int]:
        """Where in the piece's text each of its tokens ends, in characters."""
        data = piece.text.encode()
        ends = self._ends[piece.first : piece.last]
        return [len(data[: max(0, end - piece.start)].decode(errors="ignore")) for end in ends]

    def _start(self) -> int:
        return self._ends[self._shown - 1] if self._shown else self._lead

    def _complete(self, last: int, bound: int) -> bool:
        """Whether the first `last` tokens end within `bound` and in a whole character."""
        end, start = self._ends[last - 1], self._start()
        return end <= bound and _whole(self._data[start:end]) == end - start

    def _find_stop(self, before: int) -> None:
        found: list[tuple[int, int, str]] = []
        for stop in self._stops:
            at = self._data.find(stop, max(self._searched_from, before - len(stop) + 1))
            if at >= 0:
                found.append((at, -len(stop), stop.decode()))
        for at, match in self._matches(partial=False):
            found.append((at, -len(match), match))
        if found:
            self._cut, _, self.stop = min(found)

    def _held_back(self) -> int:
        """Bytes at the end in which a stop may have begun."""
        tail = self._data[max(self._start(), self._searched_from) :]
        held = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(tail)), held, -1):
                if tail.endswith(stop[:size]):
                    held = size
                    break
        begun = [len(self._data) - at for at, _ in self._matches(partial=True)]
        return max([held, *begun])

    def _matches(self, *, partial: bool) -> Iterator[tuple[int, str]]:
        """Where each pattern first matches (or, if `partial`, may come to match), and its text."""
        if not self._patterns:
            return
        start = max(self._start(), self._searched_from)
        data = self._data[start:]
        # Bytes that are no text become surrogates and turn back into themselves.
        text = data[: _whole(data)].decode("utf-8", "surrogateescape")
        for pattern in self._patterns:
            match = pattern.search(text, partial=partial)
            if match and match[0]:
                before = text[: match.start()].encode("utf-8", "surrogateescape")
                yield start + len(before), match[0]


def _whole(data: bytes | bytearray) -> int:
    """How many bytes of `data` are whole characters (what can't become one counts as one)."""
    return codecs.utf_8_decode(data, "replace", False)[1]
