"""A short way from an unfinished text to a valid end, found byte by byte.

What lives here: a bounded best-first search over the grammar compiled for single bytes. What
does not: the token encoding of what is found (matcher.py).

Four searches, each bounded by a number of states. The first is best-first: where several bytes
are allowed they are ranked (what closes first, then the shortest values), and a path costs its
unforced bytes, its departures from the first rank, and its open brackets and quotes. That finds
the end of JSON in a few dozen states. The second, for patterns that want something of a text but
not where (`(?=.*[0-9])`, or a word somewhere), goes round the `words` that occur in the
constraint. The third, for objects with many required members, never goes back: it takes the first
rank. The fourth, for what loops before it may end (counted repetitions), goes level by level and
keeps few paths of those that allow the same next bytes: those whose sets of next bytes changed
most often are furthest. What is found is always valid; it need not be the very shortest.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence

from llguidance import LLMatcher

from phloem.grammar.engine import consume, try_consume

__all__ = ["Admits", "anything", "shortest_completion"]

_BEST_FIRST_STATES = 150
_GREEDY_STATES = 400
_ROUND_STATES = 300
_LEVEL_STATES = 4000
_WIDTH = 24
_ALIKE = 3
"""Of the paths that allow the same next bytes so many are kept."""
_FEW = 12
_STEP, _DEVIATION, _OPEN = 1, 4, 2
# Tried first where much is allowed: what closes (after a digit that is ","), then the shortest
# values, then separators and the letters and digits that usual patterns ask for.
_LIKELY = b'"}],:0{[1ntf-aA .@/T_Zx25'
_SORTS = (b"a", b"A", b"0", b"-", b"@", b".", b" ", b"!", b"/", b"_", b":", b"b", b"1")
"""One character of each sort that patterns ask for, and seconds of the usual ones."""


Admits = Callable[[bytes], bool]
"""Whether a way (bytes after the text) also fits what the grammar does not say."""

_Place = tuple[int, bool, bool]
"""Nesting depth, "inside a string" and "after a backslash"."""
_START: _Place = (0, False, False)


def anything(_: bytes) -> bool:
    """Admits every way."""
    return True


def shortest_completion(
    root: LLMatcher, text: bytes, admits: Admits = anything, words: Sequence[bytes] = ()
) -> bytes | None:
    """Bytes that complete `text` in the byte-level grammar `root`, or None if none was found.

    `root` is at its start and is not changed. An empty result means `text` is complete.
    A way that `admits` refuses is not followed. `words` are texts that the constraint may want.
    """
    matcher = root.deep_copy()
    if not consume(matcher, text):
        return None
    if matcher.is_accepting():
        return b""
    base = _scan(_START, text)
    found = _best_first(matcher.deep_copy(), base, admits)
    # Short ones first where little room is left, whole ones first where order counts.
    for order in (sorted(words, key=len), words):
        if found is None:
            found = _round(matcher.deep_copy(), base, admits, [*order, *_SORTS])
    if found is None:
        found = _greedy(matcher.deep_copy(), admits)
    return _by_level(matcher, base, admits) if found is None else found


def _best_first(matcher: LLMatcher, base: _Place, admits: Admits) -> bytes | None:
    order = itertools.count()
    heap = [(0, next(order), 0, b"", base)]
    here = b""
    for _ in range(_BEST_FIRST_STATES):
        if not heap:
            return None
        _, _, spent, start, place = heapq.heappop(heap)
        here = path = _advance(matcher, here, start)
        if matcher.is_error():
            return None
        if not admits(path):
            continue
        if matcher.is_accepting():
            return path
        place = _scan(place, path[len(start) :])
        for rank, byte in enumerate(_candidates(bytes(matcher.compute_bitmask()))):
            last = bytes((byte,))
            there = _scan(place, last)
            cost = spent + _STEP + _DEVIATION * rank
            total = cost + _OPEN * _pending(there)
            heapq.heappush(heap, (total, next(order), cost, path + last, there))
    return None


def _round(
    matcher: LLMatcher, base: _Place, admits: Admits, words: Sequence[bytes]
) -> bytes | None:
    """One of the words after the other, as far as each fits; the end as soon as there is one."""
    path = b""
    for turn in range(_ROUND_STATES):
        path = _advance(matcher, path, path)
        if matcher.is_error() or not admits(path):
            return None
        if matcher.is_accepting():
            return path
        depth, quoted, _ = _scan(base, path)
        ends = (b'"',) if quoted else (b"}", b"]") if depth > 0 else ()
        place = turn % len(words)
        # Where no word fits, half a character or an escape is to be ended.
        rest = bytes(_candidates(bytes(matcher.compute_bitmask()))[:1])
        for step in (*ends, *words[place:], *words[:place], rest):
            taken = try_consume(matcher, step)
            if taken == len(step):
                path += step
                break
            matcher.rollback(taken)
    return None


def _greedy(matcher: LLMatcher, admits: Admits) -> bytes | None:
    path = b""
    for _ in range(_GREEDY_STATES):
        path = _advance(matcher, path, path)
        if matcher.is_error() or not admits(path):
            return None
        if matcher.is_accepting():
            return path
        choices = _candidates(bytes(matcher.compute_bitmask()))
        if not choices:
            return None
        matcher.consume_token(choices[0])
        path += bytes(choices[:1])
    return None


def _by_level(matcher: LLMatcher, base: _Place, admits: Admits) -> bytes | None:
    level: list[tuple[bytes, tuple[bytes, ...]]] = [(b"", ())]
    here = b""
    states = 0
    while level and states < _LEVEL_STATES:
        kinds: dict[tuple[int, bytes], dict[tuple[bytes, ...], bytes]] = {}
        for start, masks in level:
            here = path = _advance(matcher, here, start)
            if matcher.is_error():
                return None
            if not admits(path):
                continue
            if matcher.is_accepting():
                return path
            mask = bytes(matcher.compute_bitmask())
            # What was allowed on the way, without repetitions: a loop that only turns adds none.
            seen = masks if masks and masks[-1] == mask else (*masks, mask)
            alike = kinds.setdefault((_pending(_scan(base, path)), mask), {})
            alike.setdefault(seen, path)
            states += 1
        ranked = [
            (seen, path)
            for _, alike in sorted(kinds.items(), key=lambda item: item[0][0])[:_WIDTH]
            for seen, path in sorted(alike.items(), key=lambda item: -len(item[0]))[:_ALIKE]
        ]
        level = [
            (path + bytes([byte]), seen) for seen, path in ranked for byte in _candidates(seen[-1])
        ]
    return None


def _advance(matcher: LLMatcher, here: bytes, path: bytes) -> bytes:
    """Bring the matcher from `here` to `path` and over the bytes forced after it."""
    _move(matcher, here, path)
    forced = bytes(matcher.compute_ff_bytes())
    if forced and consume(matcher, forced):
        path += forced
    return path


def _move(matcher: LLMatcher, here: bytes, there: bytes) -> None:
    """Bring the matcher from the path `here` to `there` by undoing and redoing bytes."""
    common = 0
    for a, b in zip(here, there, strict=False):
        if a != b:
            break
        common += 1
    if len(here) > common:
        matcher.rollback(len(here) - common)
    if len(there) > common:
        consume(matcher, there[common:])


@functools.lru_cache(maxsize=1024)
def _candidates(mask: bytes) -> tuple[int, ...]:
    allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
    likely = [byte for byte in _LIKELY if byte in allowed]
    if len(allowed) > _FEW and likely:
        return tuple(likely)
    return (*likely, *[byte for byte in allowed if byte not in _LIKELY][:_FEW])


def _scan(place: _Place, text: bytes) -> _Place:
    """Where one is after more `text`, read as JSON."""
    depth, quoted, escaped = place
    for byte in text:
        if escaped:
            escaped = False
        elif quoted:
            escaped = byte == 0x5C
            quoted = byte != 0x22
        elif byte == 0x22:
            quoted = True
        elif byte in b"{[":
            depth += 1
        elif byte in b"}]":
            depth -= 1
    return depth, quoted, escaped


def _pending(place: _Place) -> int:
    depth, quoted, _ = place
    return max(depth, 0) + quoted
