"""The formats JSON Schema defines, as regular expressions over whole strings.

What lives here: the expressions, each from the RFC it names. What does not: the decision whether
a dialect asserts formats at all (strings.py). A format that is no regular language is given by a
regular subset where that is what people write; it is never given by a superset.
"""

from __future__ import annotations

__all__ = ["ANNOTATION_ONLY", "CLOCK", "FORMATS"]

# 0001 to 9999: years that Python's dates have too.
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    f"|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
# A time of day without its zone.
CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"{CLOCK}(?:\.[0-9]+)?{_ZONE}"

_ALNUM, _INNER = "[A-Za-z0-9]", "[A-Za-z0-9-]"
# Up to 63 characters. Two hyphens in third and fourth place mark a name in another alphabet, and
# which of those are names no regular expression tells.
_LABEL = (
    f"{_ALNUM}(?:{_INNER}{{0,2}}{_ALNUM}"
    f"|{_INNER}(?:{_ALNUM}{_INNER}|-{_ALNUM}){_INNER}{{0,58}}{_ALNUM})?"
)
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "(?:" + "|".join(
    [f"(?:{_H16}:){{6}}{_LS32}", f"::(?:{_H16}:){{5}}{_LS32}"]
    + [
        f"(?:(?:{_H16}:){{0,{before}}}{_H16})?::(?:{_H16}:){{{4 - before}}}{_LS32}"
        for before in range(5)
    ]
    + [f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}", f"(?:(?:{_H16}:){{0,6}}{_H16})?::"]
) + ")"  # fmt: skip


def _uri(unreserved: str, private: str, *, relative: bool) -> str:
    """RFC 3986 (URI) or, with more unreserved characters, RFC 3987 (IRI)."""
    sub = "!$&'()*+,;="
    pct = "%[0-9A-Fa-f]{2}"
    pchar = f"(?:[{unreserved}{sub}:@]|{pct})"
    segments = f"(?:/{pchar}*)*"
    user = f"(?:[{unreserved}{sub}:]|{pct})*"
    host = rf"(?:\[{_IPV6}\]|(?:[{unreserved}{sub}]|{pct})*)"
    authority = f"(?:{user}@)?{host}(?::[0-9]*)?"
    tail = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    absolute = f"/(?:{pchar}+{segments})?"
    path = f"(?://{authority}{segments}|{absolute}|{pchar}+{segments}|)"
    full = f"[A-Za-z][A-Za-z0-9+.-]*:{path}{tail}"
    if not relative:
        return full
    no_colon = f"(?:[{unreserved}{sub}@]|{pct})+"
    return f"(?:{full}|(?://{authority}{segments}|{absolute}|{no_colon}{segments}|){tail})"


_ASCII = r"A-Za-z0-9._~\-"
_UCS = r"A-Za-z0-9._~\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\-"
_PRIVATE = r"\ue000-\uf8ff"

_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_UUID = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
_TEMPLATE_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
_TEMPLATE_SPEC = rf"{_TEMPLATE_VARIABLE}(?:\*|:[1-9][0-9]{{0,3}})?"
_URI_TEMPLATE = (
    r"(?:[^\u0000-\u0020\"'%<>\\^`{|}]|%[0-9A-Fa-f]{2}"
    rf"|\{{[+#./;?&=,!@|]?{_TEMPLATE_SPEC}(?:,{_TEMPLATE_SPEC})*\}})*"
)

_DAYS = r"[0-9]+D"
_DURATION_DATE = rf"(?:{_DAYS}|[0-9]+M(?:{_DAYS})?|[0-9]+Y(?:[0-9]+M(?:{_DAYS})?)?)"
_DURATION_TIME = r"T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)"

# A regular expression without nesting beyond three levels, each piece of which ECMA-262 and other
# engines read alike: the language of all regular expressions is not regular.
_RX_SIGN = r"\\[dDsSwWtnrfv.\\/\[\]()*+?{}|$^-]"
_RX_RANGE = "[a-y]-z|[A-Y]-Z|[0-8]-9|a-[b-f]|A-[B-F]|[0-4]-[5-9]"
_RX_CLASS = rf"\[\^?(?:[A-Za-z0-9_ .,:;/+*?$(){{}}|@#%&=!<>~'\"]|{_RX_RANGE}|{_RX_SIGN})+-?\]"
_RX_REPEAT = r"(?:[*+?]\??|\{[0-9]{1,3}(?:,)?\}|)"
_RX_SIMPLE = rf"(?:[$^]|\\[bB]|(?:[^\\\[\](){{}}*+?|^$]|{_RX_SIGN}|{_RX_CLASS}){_RX_REPEAT})*"


def _group(inner: str) -> str:
    return rf"(?:{_RX_SIMPLE}(?:\((?:\?[:=!])?{inner}(?:\|{inner})*\){_RX_REPEAT}{_RX_SIMPLE})*)"


_RX_ONE = _group(_group(_RX_SIMPLE))
_REGEX = rf"{_RX_ONE}(?:\|{_RX_ONE})*"

FORMATS: dict[str, str] = {
    "date": _DATE,  # RFC 3339 full-date, days of each month
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)",
    "email": rf"{_ATEXT}(?:\.{_ATEXT})*@{_HOST}",  # RFC 5321 without quoting
    "idn-email": rf"(?:[^\s@\"(),:;<>\[\]\\.]+)(?:\.[^\s@\"(),:;<>\[\]\\.]+)*@{_HOST}",
    "hostname": rf"(?=[^]{{1,253}}$){_HOST}",  # RFC 1123
    "idn-hostname": rf"(?=[^]{{1,253}}$){_HOST}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,  # RFC 4291
    "uri": _uri(_ASCII, "", relative=False),
    "uri-reference": _uri(_ASCII, "", relative=True),
    "iri": _uri(_UCS, _PRIVATE, relative=False),
    "iri-reference": _uri(_UCS, _PRIVATE, relative=True),
    "uri-template": _URI_TEMPLATE,  # RFC 6570
    "uuid": _UUID,  # RFC 4122
    "json-pointer": _POINTER,  # RFC 6901
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "regex": _REGEX,
}
"""Format name -> regular expression (ECMA-262 syntax, to match the whole string)."""

ANNOTATION_ONLY = 8
"""From this draft (2019-09) on, a schema that names its dialect has formats as annotations."""
