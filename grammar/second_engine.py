"""The regex index of `outlines-core` as a second opinion on what a regex accepts.

What lives here: acceptance by that index, and the subset of expressions on which it is right.
What does not: generation; llguidance alone decides what is generated.

The index commits to the first alternative that matches (`a|ab` refuses "ab", with outlines-core
0.2), and reads multi-byte characters only as whole tokens. So it is asked only about ASCII
expressions without assertions in which the options of every alternative begin with different
characters and every optional or repeated part begins with another character than what follows.
"""

from __future__ import annotations

from outlines_core import Guide, Index, Vocabulary

from phloem.grammar.regex.nodes import Alt, Cat, Chars, Node, Rep, nullable
from phloem.grammar.regex.parser import parse_regex

__all__ = ["in_common_subset", "index_accepts"]

_EOS = 256
_ASCII = [chr(code) for code in range(128)]


def in_common_subset(pattern: str) -> bool:
    """Whether outlines-core is known to be right about `pattern` (see the module)."""
    return pattern.isascii() and _is_plain(parse_regex(pattern, "python"))


def index_accepts(pattern: str, text: str) -> bool:
    """Whether outlines-core accepts the ASCII `text` as a full match, a byte a token."""
    vocabulary = Vocabulary(_EOS, {bytes([byte]): [byte] for byte in range(1, 128)})
    guide = Guide(Index(pattern, vocabulary))
    for byte in text.encode():
        if byte not in guide.get_tokens():
            return False
        guide.advance(byte)
    return guide.is_finished() or _EOS in guide.get_tokens()


def _is_plain(node: Node) -> bool:
    match node:
        case Chars():
            return not node.named
        case Cat(items):
            return all(map(_is_plain, items)) and _is_decided(items)
        case Alt(options):
            return all(map(_is_plain, options)) and _apart([_first(o) for o in options])
        case Rep(item):
            return _is_plain(item) and not nullable(item)
    return False


def _is_decided(items: tuple[Node, ...]) -> bool:
    """Whether each part that may stop early is followed by something that begins differently."""
    return all(
        not isinstance(item, Rep | Alt | Cat)
        or (isinstance(item, Rep) and item.low == item.high)
        or _apart([_first(item), _first(Cat(items[index + 1 :]))])
        for index, item in enumerate(items)
    )


def _apart(firsts: list[set[str]]) -> bool:
    return sum(map(len, firsts)) == len(set().union(*firsts))


def _first(node: Node) -> set[str]:
    """The ASCII characters a text of `node` may begin with."""
    match node:
        case Chars():
            return {char for char in _ASCII if node.holds(char)}
        case Cat(items):
            found: set[str] = set()
            for item in items:
                found |= _first(item)
                if not nullable(item):
                    break
            return found
        case Alt(options):
            return set().union(*map(_first, options))
        case Rep(item):
            return _first(item)
    return set(_ASCII)
