"""What a branch has said so far: its text, its chat messages, its open role and scopes.

What lives here: pure bookkeeping of text. What does not: tokens and KV, which are the
session's. `text()` spells special tokens out; `messages()` holds each message's own text,
white space included.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from phloem.errors import ProgramError

__all__ = ["Transcript"]


@dataclass(slots=True)
class Transcript:
    """A growing text with the structure that roles and scopes put on it."""

    pieces: list[str] = field(default_factory=list)
    closed: list[dict[str, str]] = field(default_factory=list)
    role: str | None = None
    content: list[str] = field(default_factory=list)
    scopes: dict[str, int] = field(default_factory=dict)
    _hash: Any = field(default_factory=hashlib.sha256, repr=False)

    def copy(self) -> Transcript:
        """An independent transcript with the same past, for a fork."""
        return Transcript(
            list(self.pieces),
            [dict(message) for message in self.closed],
            self.role,
            list(self.content),
            dict(self.scopes),
            self._hash.copy(),
        )

    def add(self, text: str, *, markup: bool = False, content: str | None = None) -> None:
        """Append `text`. Chat markup is not content; `content` replaces it in the message."""
        self.pieces.append(text)
        # Markup and text that spells it are different prompts.
        self._hash.update(b"\0markup\0" if markup else b"\0text\0")
        self._hash.update(text.encode("utf-8", "surrogatepass"))
        if not markup:
            self.content.append(text if content is None else content)

    def open_role(self, role: str) -> None:
        """Begin a message. Raises `ProgramError` inside another message."""
        if self.role is not None:
            raise ProgramError(
                f"a {role} message begins inside a {self.role} message",
                hint="close the first message before the next; roles can't be nested",
            )
        self.role = role
        self.content = []

    def close_role(self, role: str) -> None:
        """End the message. Raises `ProgramError` unless a message of `role` is open."""
        if self.role != role:
            raise ProgramError(
                f"{role}_end without an open {role} message"
                + (f" (a {self.role} message is open)" if self.role else ""),
                hint=f"open it with {role}_begin(), or use {role}(...) for the whole message",
            )
        self.closed.append({"role": role, "content": "".join(self.content)})
        self.role = None
        self.content = []

    def open_scope(self, name: str) -> None:
        """Remember where the text of scope `name` begins."""
        self.scopes[name] = len(self.pieces)

    def close_scope(self, name: str) -> str:
        """The text since `open_scope(name)`."""
        return "".join(self.pieces[self.scopes.pop(name) :])

    def fingerprint(self) -> str:
        """A hash of all text so far."""
        return self._hash.hexdigest()  # type: ignore[no-any-return] # hashlib's object is untyped

    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces)

    def messages(self) -> list[dict[str, str]]:
        """The messages so far, an open one included."""
        found = [dict(message) for message in self.closed]
        if self.role is not None:
            found.append({"role": self.role, "content": "".join(self.content)})
        return found
