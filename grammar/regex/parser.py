"""Pattern text -> syntax tree, for Python's `re` and for ECMA-262 as JSON Schema uses it.

What lives here: the recursive-descent parser and the refusals that name a position: what is no
regular language (backreferences), what changes the language by the way it is searched (atomic
groups, possessive repetition, conditionals), and what the two dialects read differently. What
does not: assertions, which are parsed here and resolved in resolve.py. In Python's dialect
`re` has the last word on what is refused.

Where a validator of the same dialect might read a class more narrowly than the standard says,
the narrower reading is taken: `\\d` in a JSON Schema is ASCII, `\\D` leaves out all digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from phloem.errors import ConstraintError
from phloem.grammar.regex.cases import with_cases
from phloem.grammar.regex.classes import ASCII, CLASSES, WIDE, Dialect
from phloem.grammar.regex.nodes import (
    EPSILON,
    NAMED,
    Alt,
    Cat,
    Chars,
    Edge,
    Look,
    Node,
    Rep,
    named_category,
    size,
)

__all__ = ["Dialect", "parse_regex"]

_MAX_SIZE = 250_000
_MAX_TEXT = 50_000
_MAX_DEPTH = 100
_DIGITS = frozenset("0123456789")
_NEWLINE = ((10, 10),)
_ECMA_NEWLINES = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def parse_regex(pattern: str, dialect: Dialect) -> Node:
    """The syntax tree of `pattern`.

    Raises `ConstraintError` with `position` (offset in characters) in its details.
    """
    parser = _Parser(pattern, dialect)
    if len(pattern) > _MAX_TEXT:
        raise ConstraintError(
            f"the regex has {len(pattern):,} characters; at most {_MAX_TEXT:,} are compiled",
            hint="use choices= for long lists of words",
        )
    try:
        node = parser.alternation(0)
    except RecursionError:
        parser.fail("groups are nested too deeply")
    if parser.at < len(pattern):
        parser.fail("unbalanced parenthesis")
    if dialect == "python":
        _check_by_python(parser)
    if size(node) > _MAX_SIZE:
        raise ConstraintError(
            f"the regex stands for more than {_MAX_SIZE:,} characters once its counted "
            "repetitions are written out",
            hint="lower the repetition counts, or use * and bound the length by max_tokens",
            size=size(node),
        )
    return node


@dataclass
class _Parser:
    text: str
    dialect: Dialect
    at: int = 0
    fold: bool = False
    dotall: bool = False
    multiline: bool = False
    ascii: bool = False
    wide: bool = False
    """Inside of something that is left out: a negated class, a negative assertion."""
    lead: int = 0
    """Where the flags and comments end that the pattern begins with."""

    def fail(self, what: str, position: int | None = None, hint: str | None = None) -> NoReturn:
        place = self.at if position is None else position
        raise ConstraintError(
            f"invalid or unsupported regex: {what} at position {place} in {_short(self.text)!r}",
            hint=hint,
            position=place,
            pattern=_short(self.text),
        )

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        if found:
            self.at += len(text)
        return found

    def next(self) -> str:
        if self.at >= len(self.text):
            self.fail("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternation(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            self.fail("groups are nested too deeply")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        self.comments()
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            start = self.at
            atom = self.atom(depth)
            self.comments()
            items.append(self.quantified(atom, start))
            self.comments()
        return items[0] if len(items) == 1 else Cat(tuple(items))

    def comments(self) -> None:
        """Pass over what Python reads as if it were not there: `a(?#b)*` repeats the a."""
        while self.dialect == "python" and self.peek("(?#"):
            start = self.at
            while self.next() != ")":
                pass
            self.lead = self.at if start == self.lead else self.lead

    def quantified(self, atom: Node, start: int) -> Node:
        count = self.quantifier()
        if count is None:
            return atom
        if isinstance(atom, Look | Edge):
            self.fail("a repeated assertion", start)
        if self.peek("+") and self.dialect == "python":
            self.fail("possessive repetition", hint="use a plain repetition")
        self.take("?")  # A lazy repetition matches the same texts.
        if self.quantifier() is not None:
            self.fail("a repetition of a repetition", hint="put the inner one in a group")
        return Rep(atom, *count)

    def quantifier(self) -> tuple[int, int | None] | None:
        for sign, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return count
        if not self.peek("{"):
            return None
        close = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(close, 0)].partition(",")
        if close < 0 or not (low or comma) or not _DIGITS.issuperset(low + high):
            return None  # Both dialects read such a brace as itself.
        if not low and self.dialect == "ecma":
            self.fail("'{,n}', which validators read differently", hint="write {0,n}")
        if len(low) > 7 or len(high) > 7:
            self.fail("a repetition count that is too large")
        least = int(low or 0)
        most = (int(high) if high else None) if comma else least
        if most is not None and most < least:
            self.fail(f"a repetition from {least} to {most}")
        self.at = close + 1
        return least, most

    def atom(self, depth: int) -> Node:
        start = self.at
        char = self.next()
        match char:
            case "(":
                return self.group(depth, start)
            case "[":
                return self.char_class(start)
            case "\\":
                return self.escape(start)
            case ".":
                return self.dot()
            case "^" | "$":
                return self.anchor(char == "^", start)
            case "*" | "+" | "?":
                self.fail(f"nothing to repeat before {char!r}", start)
            case "{":
                self.at = start
                if self.quantifier() is not None:
                    self.fail("nothing to repeat before '{'", start)
                self.at = start + 1
        return self.char(ord(char))

    def newlines(self) -> Chars:
        return Chars(_NEWLINE if self.dialect == "python" else _ECMA_NEWLINES)

    def dot(self) -> Chars:
        ranges = () if self.dotall else self.newlines().ranges
        return Chars(ranges, negated=True)

    def anchor(self, at_start: bool, start: int) -> Node:
        """`^` or `$`: a border of the text, or of a line of it."""
        edge = Edge(at_start, start)
        if self.multiline:
            return Alt((edge, Look(self.newlines(), not at_start, False, start)))
        if at_start or self.dialect == "ecma":
            return edge
        # For `re` the place before a newline at the very end is the end too.
        return Alt((edge, Look(Cat((Chars(_NEWLINE), edge)), True, False, start)))

    def char(self, code: int) -> Chars:
        return self.folded(Chars(((code, code),)))

    def folded(self, chars: Chars) -> Chars:
        """All cases of the characters under the flag i."""
        if not self.fold:
            return chars
        if self.ascii:
            pairs = [(code, code ^ 32) for code in (*range(65, 91), *range(97, 123))]
            others = [
                (other, other) for code, other in pairs if Chars(chars.ranges).holds(chr(code))
            ]
            return Chars((*chars.ranges, *others), chars.named, chars.negated)
        return Chars(tuple(with_cases(chars.ranges)), chars.named, chars.negated)

    def group(self, depth: int, start: int) -> Node:
        if not self.take("?"):
            return self.close(depth, start)
        if self.take(":"):
            return self.close(depth, start)
        for sign, ahead, negative in (
            ("=", True, False), ("!", True, True), ("<=", False, False), ("<!", False, True),
        ):  # fmt: skip
            if self.take(sign):
                kept = self.wide
                self.wide ^= negative
                look = Look(self.close(depth, start), ahead, negative, start)
                self.wide = kept
                return look
        if self.peek("P=") or self.peek("("):
            self.fail("a backreference or a conditional group", start)
        if self.peek(">"):
            self.fail("an atomic group", start, hint="use (?:...)")
        # Only Python's `re` and Rust write "P<"; nobody reads it as something else.
        if self.take("P<") or (self.dialect == "ecma" and self.take("<")):
            self.name_group(start)
            return self.close(depth, start)
        return self.flags(depth, start)

    def name_group(self, start: int) -> None:
        name = ""
        while (char := self.next()) != ">":
            name += char
        # In ECMA-262 names may hold "$".
        if not name.replace("$", "_").isidentifier():
            self.fail(f"the group name {name!r}", start)

    def close(self, depth: int, start: int) -> Node:
        return self.inside(depth, start, self.flags_now())

    def flags_now(self) -> tuple[bool, bool, bool, bool]:
        return self.fold, self.dotall, self.multiline, self.ascii

    def inside(self, depth: int, start: int, after: tuple[bool, bool, bool, bool]) -> Node:
        """The rest of a group, behind which the flags are those of `after`."""
        node = self.alternation(depth + 1)
        self.fold, self.dotall, self.multiline, self.ascii = after
        if not self.take(")"):
            self.fail("missing ), unterminated group", start)
        return node

    def flags(self, depth: int, start: int) -> Node:
        kept = self.flags_now()
        on = True
        while (sign := self.next()) not in ":)":
            if sign == "-":
                on = False
            elif sign == "i":
                self.fold = on
            elif sign == "s":
                self.dotall = on
            elif sign == "m":
                self.multiline = on
            elif sign == "u" or (sign == "a" and self.dialect == "python"):
                self.ascii = sign == "a"
            else:
                self.fail(f"the group (?{sign}", start)
        if sign == ")":
            if start != self.lead:
                self.fail("flags that are not at the start", start, hint="use (?i:...)")
            self.lead = self.at
            return EPSILON
        return self.inside(depth, start, kept)

    def escape(self, start: int) -> Node:
        char = self.text[self.at : self.at + 1]
        if char in {"b", "B"}:
            self.at += 1
            return self.boundary(char == "B", start)
        if self.dialect == "python" and char in {"A", "Z"}:
            self.at += 1
            return Edge(char == "A", start)
        if char in "123456789" and char:
            self.fail("a backreference", start, hint="a constraint can't repeat earlier text")
        if char == "k" and self.dialect == "ecma":
            self.fail("a named backreference", start)
        found = self.escaped(start)
        return found if isinstance(found, Chars) else self.char(found)

    def boundary(self, negative: bool, start: int) -> Node:
        word, other = self.class_of("w"), self.class_of("W")
        if not negative:
            sides = [((word, True), (word, False)), ((word, False), (word, True))]
        elif self.dialect == "ecma":
            sides = [((word, True), (word, True)), ((word, False), (word, False))]
        else:  # For `re` there is no place in the empty text: some character stands beside it.
            sides = [
                ((word, True), (word, True)),
                ((other, True), (word, False)),
                ((word, False), (other, True)),
            ]
        return Alt(
            tuple(
                Cat((Look(left, False, not before, start), Look(right, True, not after, start)))
                for (left, before), (right, after) in sides
            )
        )

    def class_of(self, name: str) -> Chars:
        if self.dialect == "python":
            return (ASCII if self.ascii else CLASSES["python"])[name]
        return (WIDE if self.wide else CLASSES["ecma"])[name]

    def escaped(self, start: int) -> Chars | int:
        """What follows a backslash: a class or one code point."""
        char = self.next()
        if char in ASCII:
            return self.class_of(char)
        if char in _CONTROLS:
            return _CONTROLS[char]
        match char:
            case "a" if self.dialect == "python":
                return 7
            case "0" if not self.text[self.at : self.at + 1].isdecimal():
                return 0
            case "x":
                return self.hex(2, start)
            case "u":
                return self.unicode(start)
            case "U" if self.dialect == "python":
                return self.hex(8, start)
            case "c" if self.dialect == "ecma" and self.text[self.at : self.at + 1].isalpha():
                return ord(self.next()) % 32
            case "p" | "P":
                return self.property(char == "P", start)
        if char.isalnum() and char.isascii():
            ours = "a schema's pattern is ECMA-262: write ^ and $" if char in "AzZ" else None
            self.fail(f"the escape \\{char}", start, hint=ours)
        return ord(char)

    def hex(self, digits: int, start: int) -> int:
        text = self.text[self.at : self.at + digits]
        if len(text) < digits or any(char not in "0123456789abcdefABCDEF" for char in text):
            self.fail("an incomplete hexadecimal escape", start)
        self.at += digits
        code = int(text, 16)
        if code > 0x10FFFF:
            self.fail("a code point above U+10FFFF", start)
        return code

    def unicode(self, start: int) -> int:
        if self.dialect == "ecma" and self.take("{"):
            close = self.text.find("}", self.at)
            code = self.hex(max(close - self.at, 1), start)
            if not self.take("}"):
                self.fail("an incomplete hexadecimal escape", start)
            return code
        code = self.hex(4, start)
        if self.dialect == "ecma" and 0xD800 <= code < 0xDC00 and self.take("\\u"):
            low = self.hex(4, start)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            self.fail("half of a surrogate pair", start)
        return code

    def property(self, negated: bool, start: int) -> Chars:
        close = self.text.find("}", self.at)
        if not self.take("{") or close < 0:
            self.fail("an incomplete \\p{...}", start)
        name = self.text[self.at : close].removeprefix("General_Category=").removeprefix("gc=")
        self.at = close + 1
        long = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Mark": "M"}
        item = named_category(long.get(name, name), negated) if self.dialect == "ecma" else None
        if item is None:
            ours = "use a general category, such as Lu"
            theirs = "Python's patterns have none; letters are [^\\W\\d_]"
            hint = ours if self.dialect == "ecma" else theirs
            self.fail(f"the Unicode property {name!r}", start, hint=hint)
        return Chars(named=(item,))

    def char_class(self, start: int) -> Node:
        negated = self.take("^")
        kept = self.wide
        self.wide ^= negated
        ranges: list[tuple[int, int]] = []
        named: list[str] = []
        first = self.dialect == "python"  # There a "]" that comes first stands for itself.
        while first or not self.take("]"):
            first = False
            low = self.class_item(start)
            if isinstance(low, int) and self.peek("-") and not self.peek("-]"):
                self.at += 1
                high = self.class_item(start)
                if isinstance(high, Chars):
                    self.fail("a class as the end of a range", start)
                if high < low:
                    self.fail("a range whose ends are in the wrong order", start)
                ranges.append((low, high))
            elif isinstance(low, int):
                ranges.append((low, low))
            else:
                _include(low, ranges, named)
        self.wide = kept
        return self.folded(Chars(tuple(ranges), tuple(named), negated))

    def class_item(self, start: int) -> Chars | int:
        if self.at >= len(self.text):
            self.fail("unterminated character class", start)
        char = self.next()
        if char != "\\":
            return ord(char)
        if self.take("b"):
            return 8
        return self.escaped(start)


def _check_by_python(parser: _Parser) -> None:
    """Refuse what `re` refuses, also where our reading of it would have a meaning."""
    try:
        re.compile(parser.text)
    except re.error as error:
        parser.fail(error.msg, error.pos)
    except (RecursionError, OverflowError, ValueError) as error:
        parser.fail(str(error), 0)


def _include(part: Chars, ranges: list[tuple[int, int]], named: list[str]) -> None:
    """Add a class to the class around it; a negated one becomes a named item."""
    if not part.negated:
        ranges.extend(part.ranges)
        named.extend(part.named)
        return
    inside = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in part.ranges)
    item = f"[^{inside}{''.join(part.named)}]"
    NAMED.setdefault(item, part.holds)
    named.append(item)


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 120 else pattern[:117] + "..."
