"""Ranges of numbers as regular expressions over decimal numerals.

What lives here: the numerals of all numbers between two bounds, digit by digit, and of multiples
of 10, 0.01 and the like. What does not: other multiples (llguidance has them).

A numeral has no exponent when it is bounded, no leading zero, no plus sign, and next to an
excluded bound no more digits than a double can tell apart, so that a validator that reads
numbers as doubles comes to the same verdict. Unbounded numbers may also be written in scientific
form, as programs print them; whole numbers have at most 24 digits (or as many as a bound).
"""

from __future__ import annotations

from fractions import Fraction

from phloem.grammar.schema.flat import Range
from phloem.grammar.schema.values import number_text

__all__ = ["MAX_UNITS", "is_power", "multiples", "numerals", "units"]

_DIGITS = 24
_FRACTION = 20
_EXACT = 16
_PRINTED = 20
"""Characters of a numeral with a fraction: 15 digits are told apart by any double, which matters
next to an excluded bound; 17 and a zero are what programs print."""
_NATURAL = f"(?:0|[1-9][0-9]{{0,{_DIGITS - 1}}})"
_EXPONENT = "[eE][+-]?(?:[0-9]{1,2}|[12][0-9]{2}|30[0-7])"
_NONE = "[^\\s\\S]"
MAX_UNITS = 10_000
"""Multiples of a larger number of units are not enforced (but for powers of ten): the automaton has
as many states, and is built while masks are computed."""


def numerals(span: Range, *, whole: bool, fractional: bool) -> str:
    """A Lark terminal expression for the numerals of a range.

    `whole`: integers only; `fractional`: no integers.
    """
    if span.low is None and span.high is None:
        return _unbounded(whole, fractional)
    zero = Fraction(0)
    options = []
    if span.high is None or span.high > 0 or (span.high == 0 and not span.high_open):
        low, is_open = (span.low, span.low_open) if span.low is not None else (zero, False)
        low, is_open = (low, is_open) if low >= 0 else (zero, False)
        options.append(_between(low, is_open, span.high, span.high_open, whole, fractional))
    if span.low is None or span.low < 0:
        # -b <= x < 0 is 0 < -x <= b; a numeral -0 is never written.
        least = -span.high if span.high is not None and span.high < 0 else zero
        is_open = span.high_open if span.high is not None and span.high < 0 else True
        most = None if span.low is None else -span.low
        inner = _between(least, is_open, most, span.low_open, whole, fractional)
        options.append(f'("-" {inner})')
    return "(" + " | ".join(options) + ")" if options else f"/{_NONE}/"


def units(step: Fraction) -> int:
    """How many units of its last digit a number has: 25 for 0.25, 120 for 120."""
    return int(step * 10 ** _decimals(step))


def is_power(step: Fraction) -> bool:
    """Whether a number is a power of ten: 100, 1, 0.01."""
    return str(units(step)).rstrip("0") == "1"


def _decimals(step: Fraction) -> int:
    return len(number_text(step).partition(".")[2])


def multiples(span: Range, step: Fraction, *, whole: bool, fractional: bool) -> str:
    """The numerals of a range that are multiples of a power of ten, `step`, as an expression."""
    plain = numerals(span, whole=whole, fractional=fractional)
    if step >= 1:
        zeros = len(str(step)) - 1
        return f"({plain} & /-?(?:0|[1-9][0-9]*0{{{zeros}}})/)"
    return f"({plain} & /-?[0-9]+(?:\\.[0-9]{{1,{_decimals(step)}}})?/)"


def _unbounded(whole: bool, fractional: bool) -> str:
    if whole:
        # One text for zero: where items must differ, "-0" after 0 would lead nowhere.
        return f"/0|-?[1-9][0-9]{{0,{_DIGITS - 1}}}/"
    if fractional:
        # Few enough digits that no double rounds the number to an integer.
        return r"/-?(?:0|[1-9][0-9]{0,8})\.[0-9]{0,5}[1-9]/"
    plain = rf"{_NATURAL}(?:\.[0-9]{{1,{_FRACTION}}})?"
    return rf"/-?(?:{plain}|[0-9](?:\.[0-9]{{1,{_FRACTION}}})?{_EXPONENT})/"


def _between(
    low: Fraction, low_open: bool, high: Fraction | None, high_open: bool,
    whole: bool, fractional: bool,
) -> str:  # fmt: skip
    """Numerals from `low` (at least 0) to `high`."""
    parts = []
    if low > 0 or low_open:
        parts.append("/(?:" + "|".join(_at_least(low, low_open)) + ")/")
    if high is not None:
        parts.append("/(?:" + "|".join(_at_most(high, high_open)) + ")/")
    bounds = [number_text(bound) for bound in (low, high or low)]
    digits = max(_DIGITS, *(len(text.partition(".")[0]) + 1 for text in bounds))
    natural = f"(?:0|[1-9][0-9]{{0,{digits - 1}}})"
    size = max(_EXACT if low_open or high_open else _PRINTED, *(len(text) + 1 for text in bounds))
    if fractional:  # A double of more digits may be an integer.
        size = _EXACT
    fraction = rf"(/{natural}\.[0-9]*{'[1-9]' if fractional else '[0-9]'}/ & /[0-9.]{{3,{size}}}/)"
    if whole:
        parts.append(f"/{natural}/")
    elif fractional:
        parts.append(fraction)
    else:
        parts.append(f"(/{natural}/ | {fraction})")
    return "(" + " & ".join(parts) + ")"


def _split(number: Fraction) -> tuple[str, str]:
    """Integer and fraction digits, without trailing zeros."""
    whole, _, rest = number_text(number).partition(".")
    return whole, rest


def _at_least(low: Fraction, is_open: bool) -> list[str]:
    whole, rest = _split(low)
    size = len(whole)
    options = [rf"[1-9][0-9]{{{size},}}(?:\.[0-9]*)?"]
    for index, digit in enumerate(whole):
        if digit != "9":
            more = f"[{int(digit) + 1}-9][0-9]{{{size - index - 1}}}"
            options.append(rf"{whole[:index]}{more}(?:\.[0-9]*)?")
    for index, digit in enumerate(rest):
        if digit != "9":
            options.append(rf"{whole}\.{rest[:index]}[{int(digit) + 1}-9][0-9]*")
    same = rf"{whole}\.{rest}"
    if is_open:
        options.append(f"{same}[0-9]*[1-9][0-9]*")
    elif rest:
        options.append(f"{same}[0-9]*")
    else:
        options.append(rf"{whole}(?:\.[0-9]*)?")
    return options


def _at_most(high: Fraction, is_open: bool) -> list[str]:
    whole, rest = _split(high)
    size = len(whole)
    options = []
    if size > 1:
        options.append(rf"(?:0|[1-9][0-9]{{0,{size - 2}}})(?:\.[0-9]*)?")
    for index, digit in enumerate(whole):
        least = 1 if index == 0 and size > 1 else 0
        if int(digit) > least:
            less = f"[{least}-{int(digit) - 1}][0-9]{{{size - index - 1}}}"
            options.append(rf"{whole[:index]}{less}(?:\.[0-9]*)?")
    for index, digit in enumerate(rest):
        if digit != "0":
            options.append(rf"{whole}\.{rest[:index]}[0-{int(digit) - 1}][0-9]*")
    if rest:
        options.append(whole)
        options.extend(rf"{whole}\.{rest[:index]}" for index in range(1, len(rest)))
    if not is_open:
        options.append(rf"{whole}\.{rest}0*" if rest else rf"{whole}(?:\.0*)?")
    return options or [_NONE]
