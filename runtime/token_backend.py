"""What backends share whose sessions keep their tokens on this side.

What lives here: `TokenBackend`, which opens and restores sessions and counts tokens, and
`outcome`, for an engine's work that belongs to no session. What does not: how a model is reached
(`embedded.py`, `host/`, `sglang/`), and sessions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from phloem.errors import Unsupported
from phloem.programs.protocol import Backend, Session, Snapshot
from phloem.runtime.engine.messages import Computed, Deliver, Failed, Message
from phloem.runtime.engine.transcript import Transcript
from phloem.runtime.engine.work import Work
from phloem.runtime.mailbox import Mailbox
from phloem.runtime.model.text_side import ModelText
from phloem.runtime.place import Place

__all__ = ["TokenBackend", "outcome"]


class TokenSession(Session, Protocol):
    """A session whose tokens are on this side."""

    transcript: Transcript


S = TypeVar("S", bound=TokenSession)


class TokenBackend(Backend, Generic[S]):
    """The part of `Backend` that needs no more than the model's text side."""

    @property
    @abstractmethod
    def _text(self) -> ModelText:
        """The model's text side; waits for it, and raises what kept it away."""

    @abstractmethod
    async def _reached(self) -> None:
        """Wait, off the event loop, until `_text` and `capabilities` answer at once."""

    @abstractmethod
    def _session(self, place: Place) -> S:
        """A new session."""

    async def open(
        self,
        session_id: str,
        *,
        namespace: str = "",
        deadline: float | None = None,
        priority: int = 0,
        branch: str = "",
    ) -> S:
        """See `Backend`."""
        await self._reached()
        return self._session(Place(session_id, namespace, deadline, priority, branch))

    async def restore(
        self,
        snapshot: Snapshot,
        session_id: str,
        *,
        deadline: float | None = None,
        priority: int = 0,
    ) -> S:
        """See `Backend`."""
        await self._reached()
        fingerprint = self.capabilities.fingerprint
        if snapshot.fingerprint != fingerprint:
            raise Unsupported(
                "the snapshot was made with another model or tokenizer",
                hint="restore it on a backend with the model it was made with",
                snapshot=snapshot.fingerprint,
                backend=fingerprint,
            )
        place = Place(session_id, snapshot.namespace, deadline, priority, snapshot.branch)
        session = self._session(place)
        session.transcript.restore(snapshot)
        return session

    def _transcript(self) -> Transcript:
        """What a new session starts from."""
        text = self._text
        return Transcript(text.tokenizer, text.start, text.bos)

    def count(self, text: str) -> int:
        """See `Backend`."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, taken alone, special tokens not recognised."""
        return self._text.tokenizer.encode(text)

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to a text, in UTF-8: maybe part of a character; b"" for specials."""
        return self._text.tokenizer.token_bytes(token)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD. Raises `Unsupported` for
        ids that the model does not have."""
        ids = tuple(tokens)
        self._transcript().restore(Snapshot(self.capabilities.fingerprint, ids))
        return self._text.tokenizer.decode(ids)


async def outcome(submit: Callable[[Work, Deliver], object], work: Work) -> Computed:
    """Do work that belongs to no session. Raises what it failed with."""
    mailbox: Mailbox[Message] = Mailbox()
    submit(work, mailbox.put)
    message = await mailbox.get()
    if isinstance(message, Failed):
        raise message.error
    assert isinstance(message, Computed)
    return message
