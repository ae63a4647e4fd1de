"""The terminals of JSON texts: literals, strings, numbers, names, punctuation.

What lives here: how each is spelled, in the canonical form that phloem generates:

* a character of a string without pattern or format has all of JSON's spellings; with one of
  them, and in names, it has one: itself, or an escape where JSON demands it (`\\n`, `\\u0001`);
* a character outside ASCII in a literal or a known name may also be a `\\u` escape;
* numbers are written as numbers.py says;
* with `one_spelling` every string is written in one way only;
* white space is absent, or of at most 32 characters between two tokens.

What does not live here: objects and arrays (emit.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

from phloem.errors import ConstraintError
from phloem.grammar.regex.emit import json_terminal
from phloem.grammar.regex.nodes import ANY, ANY_CHAR, Alt, And, Node, Not, Rep, literal
from phloem.grammar.schema.model import KeyClass, Numbers, Strings
from phloem.grammar.schema.numbers import MAX_UNITS, is_power, multiples, numerals, units
from phloem.grammar.schema.values import common_multiple, number_text

__all__ = ["Terminals", "lark_string"]

_HEX = "[0-9A-Fa-f]"
_UNIT = f"(?:[0-9A-CEFa-cef]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}})"
_PAIR = rf"[Dd][89ABab]{_HEX}{{2}}\\u[Dd][C-Fc-f]{_HEX}{{2}}"
_CHAR = rf'(?:[^"\\\x00-\x1f]|\\(?:["\\\/bfnrt]|u(?:{_UNIT}|{_PAIR})))'
_FAR = Fraction(10**15)
_SPACE = r"[ \t\n\r]{0,32}"


class Terminals:
    """Names terminals, each distinct expression once, and writes their definitions."""

    def __init__(self, prefix: str, *, whitespace: bool, one_spelling: bool) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}
        self._rules: dict[str, str] = {}
        self._classes: dict[tuple[Node | None, tuple[str, ...]], str] = {}
        self._space = _SPACE if whitespace else ""
        self._one_spelling = one_spelling
        self.comma = self._mark(",")
        self.open_object = self._mark("{", before=False)
        self.close_object = self._mark("}", after=False)
        self.open_array = self._mark("[", before=False)
        self.close_array = self._mark("]", after=False)

    def text(self) -> str:
        """The definitions, as Lark text."""
        lines = [f"{name}: {expression}" for expression, name in self._names.items()]
        lines += [f"{name}: {body}" for body, name in self._rules.items()]
        return "\n".join(lines) + "\n"

    def literals(self, texts: Sequence[str]) -> str:
        """Any of these JSON texts."""
        spell = lark_string if self._one_spelling else _spelled
        return self._named(" | ".join(map(spell, texts)))

    def string(self, kind: Strings) -> str:
        """A JSON string."""
        count = _range(kind.min_length, kind.max_length)
        if not kind.languages and not self._one_spelling:
            return self._named(f'/"{_CHAR}{count}"/')
        parts = list(kind.languages)
        if count != "*" or not parts:
            parts.append(Rep(ANY_CHAR, kind.min_length, kind.max_length))
        return self._named(json_terminal(And(tuple(parts)) if len(parts) > 1 else parts[0]))

    def number(self, kind: Numbers) -> str:
        """A JSON number."""
        whole, fractional = kind.whole, kind.fractional
        if not kind.multiples:
            return self._named(numerals(kind.range, whole=whole, fractional=fractional))
        (step,) = kind.multiples
        if is_power(step):
            return self._named(multiples(kind.range, step, whole=whole, fractional=fractional))
        if units(step) > MAX_UNITS:
            raise ConstraintError(
                f"'multipleOf' of {number_text(step)} in all can't be enforced: it has more than"
                f" {MAX_UNITS:,} units of its last digit",
                hint="use a rounder number, or bound the value only",
                keyword="multipleOf",
            )
        if kind.fractional:
            raise ConstraintError("'multipleOf' for numbers that must not be integers")
        rules = [self._multiples(kind, step) for step in _steps(step)]
        return rules[0] if len(rules) == 1 else self._rule(" | ".join(rules))

    def _multiples(self, kind: Numbers, step: Fraction) -> str:
        """Multiples written with as many decimals as `step` has, or none: llguidance's own."""
        body: dict[str, object] = {"type": "integer" if kind.whole else "number"}
        for bound, is_open, plain, exclusive in (
            (kind.range.low, kind.range.low_open, "minimum", "exclusiveMinimum"),
            (kind.range.high, kind.range.high_open, "maximum", "exclusiveMaximum"),
        ):
            # Without bounds a model that can't divide would write digits without end.
            far = _FAR if plain == "maximum" else -_FAR
            body[exclusive if is_open else plain] = far if bound is None else bound
        body["multipleOf"] = step
        fields = ", ".join(
            f'"{name}": ' + (json.dumps(value) if isinstance(value, str) else number_text(value))  # type: ignore[arg-type]
            for name, value in body.items()
        )
        return self._rule(f'%json {{{fields}, "x-guidance": {{"whitespace_flexible": false}}}}')

    def _rule(self, body: str) -> str:
        return self._rules.setdefault(body, f"{self._prefix}n{len(self._rules)}")

    def key(self, name: str) -> str:
        """A known member's name and the colon after it.

        Names of all sorts end at their quote and leave the colon to a terminal of its own: of
        two terminals that fit, the longer one would hide the other.
        """
        spell = lark_string if self._one_spelling else _spelled
        return f"{self._named(spell(json.dumps(name, ensure_ascii=False)))} {self._colon()}"

    def key_class(self, kind: KeyClass) -> str:
        """The name of any other member and the colon after it."""
        key = kind.language, tuple(sorted(kind.taken))
        if key not in self._classes:
            parts: list[Node] = [] if kind.language is None else [kind.language]
            if kind.taken:
                parts.append(Not(Alt(tuple(map(literal, key[1])))))
            if self._one_spelling and not parts:
                parts.append(ANY)
            text = json_terminal(And(tuple(parts))) if parts else f'/"{_CHAR}*"/'
            self._classes[key] = f"{self._named(text)} {self._colon()}"
        return self._classes[key]

    def _colon(self) -> str:
        return self._named(f"/{self._space}:{self._space}/")

    def _mark(self, sign: str, *, before: bool = True, after: bool = True) -> str:
        if not self._space:
            return lark_string(sign)
        left, right = (self._space if side else "" for side in (before, after))
        return self._named(f"/{left}\\{sign}{right}/" if sign != "," else f"/{left},{right}/")

    def _named(self, expression: str) -> str:
        return self._names.setdefault(expression, f"{self._prefix.upper()}T{len(self._names)}")


def _steps(multiple: Fraction) -> list[Fraction]:
    """The multiples of `multiple` by the decimals they are written with: 0.25, 0.5 and 1."""
    steps = {multiple: None}
    decimals = Fraction(1)
    while common_multiple((multiple, decimals)) != multiple:
        steps[common_multiple((multiple, decimals))] = None
        decimals /= 10
    return list(steps)


def _spelled(text: str) -> str:
    """A JSON text as written, or with `\\u` escapes for what is not ASCII."""
    if text.isascii():
        return lark_string(text)
    parts = []
    for char in text:
        if char.isascii():
            parts.append("\\" + char if not char.isalnum() and char.isprintable() else char)
        else:
            # A line end of Unicode would end the expression.
            plain = char if char.isprintable() else f"\\x{{{ord(char):x}}}"
            parts.append(f"(?:{plain}|{_escapes(char)})")
    return "/" + "".join(parts) + "/"


def _escapes(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(
        "\\\\u" + "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{unit:04x}")
        for unit in (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    )


def lark_string(text: str) -> str:
    """`text` as a Lark string literal."""
    # The one control character that JSON does not escape, and llguidance does not read.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _range(low: int, high: int | None) -> str:
    if (low, high) == (0, None):
        return "*"
    return f"{{{low},{'' if high is None else high}}}"
