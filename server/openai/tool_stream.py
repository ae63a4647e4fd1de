"""Tool calls read out of a reply as it comes.

What lives here: `ToolStream`, a state machine over pieces of text, used for streamed and whole
replies alike so that both say the same. What does not: what the reply may be
(`constraints.py`).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TypeAlias

from phloem.server.openai.constraints import ToolMode
from phloem.server.openai.messages import CALL_BEGIN, CALL_END

__all__ = ["CallArguments", "CallStart", "ContentPiece", "Piece", "ToolStream"]

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([\w-]+)"\s*,\s*"arguments"\s*:\s*')


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Ordinary text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its name is known."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


Piece: TypeAlias = ContentPiece | CallStart | CallArguments


class ToolStream:
    """Feed it the reply's text; it gives back what the pieces mean."""

    def __init__(self, mode: ToolMode) -> None:
        self._stage = {"none": "content", "auto": "begin", "call": "head"}[mode]
        self._marked = mode == "auto"
        self._buffer = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.calls = 0

    @property
    def whole(self) -> bool:
        """Whether no call that has begun is cut so far."""
        return self._stage != "arguments"

    def feed(self, text: str) -> list[Piece]:
        """The meaning of the next `text`."""
        self._buffer += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """The reply is over: text that was held back because it might have become a mark."""
        held, self._buffer = self._buffer, ""
        return [ContentPiece(held)] if held and self._stage == "begin" and not self.calls else []

    def _step(self, pieces: list[Piece]) -> bool:
        """Go one stage on; False when more text is needed."""
        if not self._buffer:
            return False
        return bool(getattr(self, f"_{self._stage}")(pieces))

    def _content(self, pieces: list[Piece]) -> bool:
        pieces.append(ContentPiece(self._buffer))
        self._buffer = ""
        return False

    def _begin(self, _: list[Piece]) -> bool:
        """Before a call's opening mark; anything else, at the very start, is content."""
        if self._buffer.startswith(CALL_BEGIN):
            self._buffer = self._buffer[len(CALL_BEGIN) :]
            self._stage = "head"
            return True
        if CALL_BEGIN.startswith(self._buffer):
            return False
        self._stage = "ignored" if self.calls else "content"
        return True

    def _head(self, pieces: list[Piece]) -> bool:
        found = _HEAD.match(self._buffer)
        if found is None:
            return False
        pieces.append(CallStart(self.calls, f"call_{secrets.token_hex(12)}", found[1]))
        self.calls += 1
        self._buffer = self._buffer[found.end() :]
        self._stage = "arguments"
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        """The arguments are one JSON object: they end where its last brace closes."""
        for position, character in enumerate(self._buffer):
            if self._closes(character):
                self._emit(pieces, position + 1)
                self._stage = "tail"
                return True
        self._emit(pieces, len(self._buffer))
        return False

    def _closes(self, character: str) -> bool:
        if self._in_string:
            ends = character == '"' and not self._escaped
            self._escaped = character == "\\" and not self._escaped
            self._in_string = not ends
            return False
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False

    def _emit(self, pieces: list[Piece], end: int) -> None:
        pieces.append(CallArguments(self.calls - 1, self._buffer[:end]))
        self._buffer = self._buffer[end:]

    def _tail(self, _: list[Piece]) -> bool:
        """After the arguments: the call's own brace and, with marks, the closing one."""
        if not self._marked:
            return False
        end = self._buffer.find(CALL_END)
        if end < 0:
            return False
        self._buffer = self._buffer[end + len(CALL_END) :]
        self._stage = "begin"
        return True

    def _ignored(self, _: list[Piece]) -> bool:
        self._buffer = ""
        return False
