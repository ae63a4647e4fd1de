"""Syntax trees -> Lark terminals, as plain text or as the inside of a JSON string.

What lives here: the writing. What does not: assertions (resolve.py removes them first).

Inside a JSON string every text has one spelling here, so that complement and intersection mean
the same for spellings as for texts: characters stand for themselves, `"` and `\\` are escaped,
control characters use the short escape where there is one and else `\\u00` with lower-case
digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from phloem.grammar.regex.nodes import (
    EPSILON,
    Alt,
    And,
    Cat,
    Chars,
    Edge,
    Look,
    Node,
    Not,
    Rep,
)

__all__ = ["json_terminal", "plain_terminal"]

_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\\\"}
_ESCAPED = (*range(0x20), 0x22, 0x5C)
_ALL_ESCAPES = r'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))'
_UNESCAPED = r'[^"\\\x00-\x1f]'


def plain_terminal(node: Node) -> str:
    """A Lark terminal expression for the texts of `node`."""
    return _Writer(_plain_chars, "(?s:.)").terminal(node)


def json_terminal(node: Node) -> str:
    """A Lark terminal expression for the texts of `node` as JSON strings, with their quotes.

    The quotes go inside intersections and complements: llguidance then sees that long runs of
    ordinary characters fit, and needs not try each token.
    """
    writer = _Writer(_json_chars, f"(?:{_UNESCAPED}|{_ALL_ESCAPES})")
    return _in_quotes(writer, node)


def _in_quotes(writer: _Writer, node: Node) -> str:
    if _is_plain(node):
        return '/"' + writer.regex(node).replace("/", "\\/") + '"/'
    match node:
        case Alt(options):
            return "(" + " | ".join(_in_quotes(writer, option) for option in options) + ")"
        case And(items):
            wanted = [_in_quotes(writer, item) for item in items if not isinstance(item, Not)]
            barred = [_in_quotes(writer, item.item) for item in items if isinstance(item, Not)]
            parts = [*(wanted or [f'/"{writer.any}*"/']), *(f"~({text})" for text in barred)]
            return "(" + " & ".join(parts) + ")"
        case Not():
            return _in_quotes(writer, And((node,)))
    return f'("\\"" {writer.terminal(node)} "\\"")'


class _Writer:
    def __init__(self, chars: Callable[[Chars], str], any_char: str) -> None:
        self._chars = chars
        self.any = any_char

    def terminal(self, node: Node) -> str:
        if _is_plain(node):
            # An empty regex would read as the start of a comment.
            return "/" + (self.regex(node).replace("/", "\\/") or "(?:)") + "/"
        match node:
            case Cat(items):
                return "(" + " ".join(self.terminal(item) for item in _runs(items)) + ")"
            case Alt(options):
                return "(" + " | ".join(map(self.terminal, options)) + ")"
            case Rep(item, low, high):
                return f"({self.terminal(item)}){{{low},{'' if high is None else high}}}"
            case And(items):
                return "(" + " & ".join(map(self.terminal, items)) + ")"
            case Not(item):
                return f"(/{self.any}*/ & ~({self.terminal(item)}))"
        raise AssertionError(f"{node} should have been resolved")

    def regex(self, node: Node) -> str:
        match node:
            case Chars():
                return self._chars(node)
            case Cat(items):
                return "".join(map(self._grouped, items))
            case Alt(options):
                return "(?:" + "|".join(map(self.regex, options)) + ")" if options else "[^\\s\\S]"
            case Rep(item, low, high):
                return self._grouped(item) + _count(low, high)
        raise AssertionError(f"{node} is not plain")

    def _grouped(self, node: Node) -> str:
        return f"(?:{self.regex(node)})" if isinstance(node, Cat | Rep) else self.regex(node)


def _is_plain(node: Node) -> bool:
    match node:
        case Chars():
            return True
        case Cat(items) | Alt(items):
            return all(map(_is_plain, items))
        case Rep(item):
            return _is_plain(item)
        case And() | Not() | Look() | Edge():
            return False


def _runs(items: tuple[Node, ...]) -> list[Node]:
    """`items` with neighbours that are plain joined, since each terminal costs a little."""
    runs: list[Node] = []
    for item in items:
        if item == EPSILON:
            continue
        if runs and _is_plain(item) and _is_plain(runs[-1]):
            runs[-1] = Cat((runs[-1], item))
        else:
            runs.append(item)
    return runs or [EPSILON]


def _count(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _plain_chars(chars: Chars) -> str:
    if not chars.ranges and not chars.named:
        return "(?s:.)" if chars.negated else "[^\\s\\S]"
    if len(chars.ranges) == 1 and not chars.named and not chars.negated:
        char = chr(chars.ranges[0][0])
        if chars.ranges[0][1] == ord(char) and (char.isalnum() or char in " _,:;"):
            return char
    inside = "".join(_range(low, high) for low, high in chars.ranges) + "".join(chars.named)
    if not inside:  # Surrogates only: no text holds one.
        return "(?s:.)" if chars.negated else "[^\\s\\S]"
    return f"[{'^' if chars.negated else ''}{inside}]"


@functools.lru_cache(maxsize=4096)
def _json_chars(chars: Chars) -> str:
    if not chars.ranges and not chars.named:
        return f"(?:{_UNESCAPED}|{_ALL_ESCAPES})" if chars.negated else "[^\\s\\S]"
    special = [code for code in _ESCAPED if chars.holds(chr(code))]
    plain = _plain_chars(chars)
    if not special:
        return plain
    others = (
        chars.negated
        or chars.named
        or any(
            code not in _ESCAPED
            for low, high in chars.ranges
            for code in range(low, min(high, low + len(_ESCAPED)) + 1)
        )
    )
    options = [f"[{plain}&&{_UNESCAPED}]"] if others else []
    if len(special) == len(_ESCAPED):
        options.append(_ALL_ESCAPES)
    else:
        options.extend(map(_escape, special))
    return "(?:" + "|".join(options) + ")"


def _escape(code: int) -> str:
    return "\\\\" + (_SHORT.get(code) or f"u{code:04x}")


def _range(low: int, high: int) -> str:
    """Code points as class items, without the surrogates, which no text holds."""
    parts = []
    for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
        if first <= last:
            item = f"\\x{{{first:x}}}"
            parts.append(item if first == last else f"{item}-\\x{{{last:x}}}")
    return "".join(parts)
