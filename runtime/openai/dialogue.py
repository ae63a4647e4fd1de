"""A session's text as the messages of a chat API.

What lives here: `Dialogue`, and the `ChatFormat` whose special tokens mark its messages. What does
not: requests (`session.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from phloem.errors import Unsupported
from phloem.programs.protocol import ChatFormat, Segment, Special

__all__ = ["CHAT", "Dialogue"]

_ROLES = ("system", "user", "assistant")
_BEGIN = {f"<|{role}|>": role for role in _ROLES}
_END = "<|end|>"

CHAT = ChatFormat(
    name="messages",
    prefix={role: (Special(token),) for token, role in _BEGIN.items()},
    suffix={role: (Special(_END),) for role in _ROLES},
)


class Dialogue:
    """Messages as (role, content); the last one may still be open."""

    def __init__(self, messages: Sequence[tuple[str, str]] = (), is_open: bool = False) -> None:
        self._messages = list(messages)
        self._open = is_open

    def append(self, segments: Sequence[Segment]) -> None:
        """Add segments. Raises `Unsupported`, changing nothing, for what is no message."""
        grown = self.copy()
        for segment in segments:
            grown._add(segment)
        self._messages, self._open = grown._messages, grown._open

    def copy(self) -> Dialogue:
        """An independent dialogue in the same state."""
        return Dialogue(self._messages, self._open)

    def request(self) -> list[dict[str, str]]:
        """The messages to answer. Raises `Unsupported` where no answer can begin."""
        *before, (role, content) = self._messages or [("", "")]
        if not self._open or role != "assistant":
            raise Unsupported(
                "a chat API generates whole assistant messages only",
                hint="put the gen into assistant(...) or `with s.assistant():`",
            )
        if content:
            raise Unsupported(
                f"a chat API can't go on from a begun answer ({content[:40]!r})",
                hint="let the gen be the first thing in assistant(...), or use an engine that "
                "works on tokens: RuntimeEndpoint or the embedded one",
            )
        return [{"role": role, "content": content} for role, content in before]

    def answer(self, text: str) -> None:
        """The open assistant message got this text."""
        self._extend(text)

    def _add(self, segment: Segment) -> None:
        if not isinstance(segment, Special):
            if not self._open and segment.text:
                raise Unsupported(
                    f"a chat API takes text in messages only, not {segment.text[:40]!r}",
                    hint="put it into system(...), user(...) or assistant(...)",
                )
            if segment.text:
                self._extend(segment.text)
        elif segment.token in _BEGIN and not self._open:
            self._messages.append((_BEGIN[segment.token], ""))
            self._open = True
        elif segment.token == _END and self._open:
            self._open = False
        else:
            raise Unsupported(
                f"a chat API takes no special token {segment.token!r} here",
                hint="use roles; the server applies the model's own template",
            )

    def _extend(self, text: str) -> None:
        role, content = self._messages[-1]
        self._messages[-1] = (role, content + text)
