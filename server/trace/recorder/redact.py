"""Secrets taken out of everything that is recorded.

What lives here: `Redactor`. What does not: the log's own masking (`server/http/logs.py`).

Four nets, each for what slips through the others:
1. headers, query parameters, JSON fields and form fields whose *name* says that they are secret;
2. the *values* of secrets that are known: of this process's environment, of its own options, and
   of credentials seen in requests (an upstream's error may quote them);
3. texts that *look* like credentials of well-known services;
4. the user's own patterns.
What was sent in pieces (a stream that spells a secret token by token) is compared when it is put
together: see `pieces`.
"""

from __future__ import annotations

import base64
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_plus

from phloem.errors import ConfigError

__all__ = ["MASK", "Redactor", "environment_secrets"]

MASK = "***"
SHORTEST = 8
"""Shorter values are too common to be looked for everywhere."""
LEARNED = 256
"""Values of requests that are remembered, in all their forms."""

_NAMES = (
    r"authorization|cookies?|api[_-]?keys?|subscription-key|password|passwd|passphrase|secret"
    r"|(?:secret|private|access)[_-]?key|signature|credentials?"
    r"|(?:access|refresh|auth|id|session|bearer|csrf|xsrf|api|security)[_-]?token"
)
_SECRET_FIELD = re.compile(rf"(?:^|[_.-])(?:{_NAMES})$", re.IGNORECASE)
_SECRET_HEADER = re.compile(rf"(?:^|[_.-])(?:{_NAMES}|key|token)$", re.IGNORECASE)
"""Of headers and of queries. In bodies "key" and "token" mean other things."""
_SECRET_VARIABLE = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|_DSN$", re.IGNORECASE
)
_LOOKS_SECRET = (
    re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{12,}"),
    re.compile(r"(?i)\b(?:bearer|basic)\s+(?=\S*[0-9=])[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\b(?:ghp|gho|ghs|ghu|github_pat|glpat|hf|xox[abprs])[_-][A-Za-z0-9_-]{16,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL
    ),
)
# name="value", "name": "value" (also inside of a JSON text within a JSON text), name=value.
_FIELD = re.compile(
    r"(\\*[\"'])?(?P<name>[\w.-]{3,40})(\\*[\"'])?(?P<mid>\s*[:=]\s*)"
    r"(?P<open>\\*[\"'])?(?P<value>[^\"'\\\s&,}]+)"
)


def environment_secrets(environment: Mapping[str, str]) -> list[str]:
    """Values of variables whose names say that they are secret, and the passwords of URLs."""
    found = []
    for name, value in environment.items():
        inner = re.search(r"://[^/\s:@]*:([^/\s@]+)@", value)
        if inner:
            found.append(inner[1])
        elif _SECRET_VARIABLE.search(name) and not value.startswith("/") and "://" not in value:
            found.append(value)
    return found


class Redactor:
    """Takes secrets out. `secrets` are known values, `patterns` the user's own expressions.

    Raises `ConfigError` for a pattern that is no regular expression.
    """

    def __init__(self, secrets: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._fixed: set[str] = set()
        for secret in secrets:
            self._fixed.update(_forms(secret))
        self._own = [_compiled(pattern) for pattern in patterns]
        self._values: re.Pattern[str] | None = None
        self._stale = True

    def learn(self, headers: Iterable[tuple[str, str]]) -> None:
        """Remember the credentials of a request, so that they are known wherever they appear."""
        for name, value in headers:
            if _SECRET_HEADER.search(name):
                parts = value.split("; ") if name == "cookie" else [value]
                for part in parts:
                    # A scheme and its value ("Bearer X"), or a cookie's name and its value.
                    self._remember(re.split(r"[ =]", part, maxsplit=1)[-1].strip())

    def _remember(self, secret: str) -> None:
        for form in _forms(secret):
            self._stale |= form not in self._known
            self._known[form] = None
            self._known.move_to_end(form)
        while len(self._known) > LEARNED:
            self._known.popitem(last=False)
            self._stale = True

    def headers(self, headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Headers with the values of secret ones masked; a scheme before a value stays."""
        return tuple(
            (name, _masked_header(value) if _SECRET_HEADER.search(name) else self.text(value))
            for name, value in headers
        )

    def text(self, text: str) -> str:
        """A text without known values and without what looks like a secret."""
        if self._stale:
            forms = sorted(self._fixed | set(self._known), key=len, reverse=True)
            self._values = re.compile("|".join(map(re.escape, forms))) if forms else None
            self._stale = False
        if self._values is not None:
            text = self._values.sub(MASK, text)
        for pattern in (*_LOOKS_SECRET, *self._own):
            text = pattern.sub(MASK, text)
        return text

    def target(self, target: str) -> str:
        """A request's target: secret parameters of the query are masked."""
        path, question, query = target.partition("?")
        return self.text(path + question + self._fields(query, in_query=True))

    def body(self, text: str) -> str:
        """A body's text: JSON is masked by its structure, a stream of events line by line,
        anything else by what looks like a named field. Texts without a secret stay as they
        are."""
        if text.lstrip()[:1] in {"{", "["}:
            return self._json_text(text)
        lines = text.split("\n")
        if any(line.startswith("data:") for line in lines[:8]):
            return "\n".join(self._event_line(line) for line in lines)
        return self.text(self._fields(text))

    def value(self, value: Any) -> Any:
        """JSON data with secret fields masked and every text looked through."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): self._hidden(item)
                if _SECRET_FIELD.search(str(name))
                else self.value(item)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _hidden(self, value: Any) -> Any:
        """The value of a secret field: its shape stays."""
        if isinstance(value, Mapping):
            return {name: self._hidden(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(item) for item in value]
        if isinstance(value, str):
            self._remember(value)
        return value if value is None or isinstance(value, bool) else MASK

    def pieces(self, texts: Sequence[str]) -> bool:
        """Whether texts spell a secret together that none of them holds alone."""
        return self.text("".join(texts)) != "".join(map(self.text, texts))

    def _event_line(self, line: str) -> str:
        if not line.startswith("data:"):
            return self.text(line)
        head = line[: len(line) - len(line[5:].lstrip())]
        return head + self._json_text(line[len(head) :])

    def _json_text(self, text: str) -> str:
        try:
            data = json.loads(text)
        except ValueError:
            return self.text(self._fields(text))
        clean = self.value(data)
        return text if clean == data else json.dumps(clean, ensure_ascii=False)

    def _fields(self, text: str, *, in_query: bool = False) -> str:
        def masked(found: re.Match[str]) -> str:
            names = _SECRET_HEADER if in_query else _SECRET_FIELD
            if not names.search(found["name"]):
                return found[0]
            self._remember(unquote_plus(found["value"]))
            return found[0][: found.start("value") - found.start()] + MASK

        return _FIELD.sub(masked, text)


def _masked_header(value: str) -> str:
    scheme, space, rest = value.partition(" ")
    return f"{scheme} {MASK}" if space and rest and scheme.isalpha() else MASK


def _forms(secret: str) -> list[str]:
    """The secret as it may be written: plain, base64, in a URL, in JSON."""
    if len(secret) < SHORTEST:
        return []
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return list({secret, encoded, quote(secret, safe=""), json.dumps(secret)[1:-1]})


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"--redact {pattern!r} is no regular expression: {error}",
            hint="the syntax is Python's `re`; what it matches becomes ***",
        ) from None
