"""The texts that pydantic's types read, as regular expressions (ECMA-262, the whole text).

What lives here: the expressions of formats that JSON Schema does not define. What does not: which
type has which (python_schema.py), and the formats of JSON Schema (schema/formats.py). Where a
format is no regular language, or a type is stricter than its name, a regular subset is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from phloem.grammar.schema.formats import FORMATS

__all__ = [
    "AWARE",
    "DURATION",
    "INTEGER_KEY",
    "LOCAL",
    "NUMBER_KEY",
    "PATTERNS",
    "UNTESTABLE",
    "WEB",
    "decimal_text",
    "url_text",
]

LOCAL = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
AWARE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_SECONDS = r"[0-9]{1,2}(?:\.[0-9]{1,6})?S"
_MINUTES = f"[0-9]{{1,2}}M(?:{_SECONDS})?"
_HOURS = f"T(?:[0-9]{{1,2}}H(?:{_MINUTES}|{_SECONDS})?|{_MINUTES}|{_SECONDS})"
DURATION = f"-?P(?:[0-9]{{1,8}}D(?:{_HOURS})?|{_HOURS})"
_NATURAL = "(?:0|[1-9][0-9]{0,17})"
INTEGER_KEY = f"-?{_NATURAL}"
NUMBER_KEY = rf"-?{_NATURAL}(?:\.[0-9]{{1,17}})?(?:[eE][+-]?[0-9]{{1,2}})?"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4, _IPV6 = FORMATS["ipv4"], FORMATS["ipv6"]
# Up to 63 characters, and no two hyphens: those mark names in another alphabet.
_LABEL = "[a-z0-9]{1,31}(?:-[a-z0-9]{1,31})?"
_NAME = rf"(?:{_LABEL}\.)*[a-z][a-z0-9]{{0,30}}(?:-[a-z0-9]{{1,31}})?"
_PORT = "(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_PATH_CHAR = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_WORD = "[A-Za-z0-9]+(?:[_+-][A-Za-z0-9]+)*"
_EMAIL = rf"(?=[^@]{{1,64}}@){_WORD}(?:\.{_WORD})*@(?:{_LABEL}\.)+[a-z]{{2,20}}"

WEB = ("http", "https", "ws", "wss", "ftp", "file")
"""The schemes whose URLs the web's standard takes apart further (host, port)."""


def url_text(schemes: Sequence[str]) -> str:
    """URLs of these schemes; a host is a name, or an IPv4 address."""
    hosted = [scheme.replace("+", r"\+") for scheme in schemes if scheme != "file"]
    host = f"(?:{_NAME}|{_IPV4})(?::{_PORT})?"
    user = "(?:[A-Za-z0-9._~-]+(?::[A-Za-z0-9._~-]*)?@)?"
    tail = rf"(?:\?(?:{_PATH_CHAR}|[/?])*)?(?:#(?:{_PATH_CHAR}|[/?])*)?"
    path = f"(?:/{_PATH_CHAR}*)*"
    options = [f"(?:{'|'.join(hosted)})://{user}{host}{path}{tail}"] if hosted else []
    options += ["file:///" + f"(?:{_PATH_CHAR}+(?:/{_PATH_CHAR}*)*)?"] * ("file" in schemes)
    return f"(?:{'|'.join(options)})"


def decimal_text(digits: int | None, places: int | None) -> str:
    """Decimals in positional notation with at most `digits` digits, `places` behind the point."""
    behind = 18 if places is None else places
    if digits is None:
        return rf"^-?{_NATURAL}{_behind(behind)}$"
    before = max(digits - (places or 0), 0)
    parts = [
        rf"(?:0|[1-9][0-9]{{0,{size - 1}}}){_behind(min(behind, digits - size))}"
        for size in range(1, before + 1)
    ]
    return f"^-?(?:{'|'.join([*parts, '0' + _behind(min(behind, digits))])})$"


def _behind(places: int) -> str:
    return rf"(?:\.[0-9]{{1,{places}}})?" if places > 0 else ""


def _network() -> str:
    """IPv4 networks: behind the prefix every bit is 0."""
    parts = [rf"{_OCTET}(?:\.{_OCTET}){{3}}(?:/32)?"]
    for prefix in range(32):
        free, bits = divmod(prefix, 8)
        ends = "|".join(str(value) for value in range(0, 256, 2 ** (8 - bits)))
        octets = [*[_OCTET] * free, f"(?:{ends})", *["0"] * (3 - free)]
        parts.append(r"\.".join(octets) + f"/{prefix}")
    return "|".join(parts)


_H16 = "[0-9a-f]{1,4}"
_NETWORK4 = f"(?:{_network()})"
_NETWORK6 = "(?:" + "|".join(
    f"(?!0{{1,4}}:){_H16}(?::{_H16}){{{groups - 1}}}::/{16 * groups}" for groups in range(1, 7)
) + f"|{_IPV6}/128)"  # fmt: skip
_INTERFACE4 = f"{_IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?"
_INTERFACE6 = f"{_IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _base64(last: str, *, ascii_only: bool) -> str:
    """Base64 with the alphabet's `last` two, with padding; of any bytes, or of ASCII texts."""
    alphabet = [*_LETTERS, *last]

    def sextet(barred: int, step: int = 1) -> str:
        # The top bits of three bytes lie in bits 32, 8 and 2 of the sextets.
        kept = [char for value, char in enumerate(alphabet[::step]) if not value * step & barred]
        return "[" + "".join("\\-" if char == "-" else char for char in kept) + "]"

    first, second, third = (sextet(bit if ascii_only else 0) for bit in (32, 8, 2))
    ends = f"{first}{sextet(0, 16)}==|{first}{second}{sextet(0, 4)}="
    return f"(?:{first}{second}{third}{sextet(0)})*(?:{ends})?"


PATTERNS: dict[str, str] = {
    **{
        f"uuid{version}": f"[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{4}}-{version}[0-9A-Fa-f]{{3}}-"
        "[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}"
        for version in range(1, 9)
    },
    "base64": _base64("+/", ascii_only=True),
    "base64 bytes": _base64("+/", ascii_only=False),
    "base64url": _base64("-_", ascii_only=True),
    "base64url bytes": _base64("-_", ascii_only=False),
    "complex": rf"-?{_NATURAL}(?:\.[0-9]{{1,17}})?[+-]{_NATURAL}(?:\.[0-9]{{1,17}})?j",
    "email": _EMAIL,
    "fraction": "-?(?:0|[1-9][0-9]{0,17})/[1-9][0-9]{0,17}",
    "ipv4interface": _INTERFACE4,
    "ipv4network": _NETWORK4,
    "ipv6interface": _INTERFACE6,
    "ipv6network": _NETWORK6,
    "ipvanyaddress": f"{_IPV4}|{_IPV6}",
    "ipvanyinterface": f"{_INTERFACE4}|{_INTERFACE6}",
    "ipvanynetwork": f"{_NETWORK4}|{_NETWORK6}",
    "name-email": rf"[A-Za-z]+(?: [A-Za-z]+)* <{_EMAIL}>",
}
"""Pydantic's name of a format -> the texts."""

UNTESTABLE = {
    "file-path": "that a file exists",
    "directory-path": "that a folder exists",
    "new-path": "that a path does not exist",
}
"""Pydantic's name of a format -> what no text can show."""
