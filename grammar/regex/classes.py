"""What `\\d`, `\\w` and `\\s` hold, in Python's `re` and in ECMA-262 as JSON Schema uses it.

What lives here: the tables. What does not: which of them holds where (parser.py).
"""

from __future__ import annotations

from typing import Literal

from phloem.grammar.regex.nodes import DIGIT, WORD, Chars

__all__ = ["ASCII", "CLASSES", "WIDE", "Dialect"]

Dialect = Literal["python", "ecma"]

_ASCII_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_ASCII_DIGIT = ((48, 57),)
_SPACE = (
    (0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
_BOM = ((0xFEFF, 0xFEFF),)
# Texts that ECMA-262 counts as white space and Python does too, and those of either.
_ECMA_SPACE = (
    (0x20, 0x20),
    *(span for span in _SPACE if span not in {(0x1C, 0x20), (0x85, 0x85)}),
)
CLASSES: dict[Dialect, dict[str, Chars]] = {
    "python": {
        "d": Chars(named=(DIGIT,)),
        "D": Chars(named=(DIGIT,), negated=True),
        "w": Chars(named=(WORD,)),
        "W": Chars(named=(WORD,), negated=True),
        "s": Chars(_SPACE),
        "S": Chars(_SPACE, negated=True),
    },
    "ecma": {
        "d": Chars(_ASCII_DIGIT),
        "D": Chars(_ASCII_DIGIT, (DIGIT,), negated=True),
        "w": Chars(_ASCII_WORD),
        "W": Chars(_ASCII_WORD, (WORD,), negated=True),
        "s": Chars(_ECMA_SPACE),
        "S": Chars(_SPACE + _BOM, negated=True),
    },
}
# In ECMA-262 expressions, where a class is left out of something: then the wider reading of the
# class is the narrower one of the whole.
WIDE = {
    "d": Chars(_ASCII_DIGIT, (DIGIT,)),
    "D": Chars(_ASCII_DIGIT, negated=True),
    "w": Chars(_ASCII_WORD, (WORD,)),
    "W": Chars(_ASCII_WORD, negated=True),
    "s": Chars(_SPACE + _BOM),
    "S": Chars(_ECMA_SPACE, negated=True),
}
# Python's under the flag a.
ASCII = {
    "d": Chars(_ASCII_DIGIT),
    "D": Chars(_ASCII_DIGIT, negated=True),
    "w": Chars(_ASCII_WORD),
    "W": Chars(_ASCII_WORD, negated=True),
    "s": Chars(((0x09, 0x0D), (0x20, 0x20))),
    "S": Chars(((0x09, 0x0D), (0x20, 0x20)), negated=True),
}
