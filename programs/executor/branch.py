"""One branch of a run: a session on the engine, the variables, and the text so far.

What lives here: `Branch`: its lazily opened session, its variables, its children. What does
not: the doing of effects (`perform.py`) or what a user holds (`api/state.py`).

The trunk does each effect before the program goes on. A child made by `fork` has a lane: its
effects queue and run in order, beside those of its siblings, while the program goes on; whoever
reads from it waits for its lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from phloem.errors import Cancelled, UnknownVariable
from phloem.programs.executor.record import SessionState
from phloem.programs.executor.run import Run, Site
from phloem.programs.executor.transcript import Transcript
from phloem.programs.protocol import Segment, Session, Snapshot

__all__ = ["Branch"]


class Branch:
    """The state of one branch. `path` is "" for the trunk, "0", "1", "0.0", … for children;
    `key` is the key of its sampling noise."""

    def __init__(self, run: Run, path: str = "", parent: Branch | None = None) -> None:
        self.run = run
        self.path = path
        self.key = path
        self.parent = parent
        self.variables: dict[str, Any] = dict(parent.variables) if parent else {}
        self.meta: dict[str, Any] = dict(parent.meta) if parent else {}
        self.transcript: Transcript = parent.transcript.copy() if parent else Transcript()
        self.written: list[str] = []
        self.inherited_pieces = len(self.transcript.pieces)
        self.sampling: Mapping[str, Any] = parent.sampling if parent else run.settings.sampling
        self.error: BaseException | None = None
        self.error_seen = False
        self.queued = parent is not None
        self._children = 0
        self._slots = 0
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._pending: list[Segment] = list(parent._pending) if parent else []
        self._tokens: list[int] = list(parent._tokens) if parent else []
        self._lane: list[asyncio.Task[None]] = []
        run.branches.append(self)

    # --- variables

    def set(self, name: str | None, value: Any, meta: Any = None) -> None:
        """Write a variable (unnamed steps keep no variable)."""
        if name is None:
            return
        self.variables[name] = value
        self.meta[name] = meta
        if name not in self.written:
            self.written.append(name)

    def get(self, name: str) -> Any:
        """A variable's value. Raises the branch's error, or `UnknownVariable`."""
        if name in self.variables:
            return self.variables[name]
        self.raise_error()
        raise UnknownVariable(
            f"no step has set the variable {name!r}"
            + (f" in branch {self.path}" if self.path else ""),
            hint=f"set so far: {', '.join(map(repr, self.variables)) or 'none'}",
        )

    # --- the session

    async def session(self) -> Session:
        """The branch's session with all its text, opened when first needed."""
        async with self._opening:
            if self._session is None:
                self._session = await self._open()
                self._session.append(self._pending)
                self._pending = []
        return self._session

    async def _open(self) -> Session:
        backend = await self.run.backend()
        settings = self.run.settings
        name = f"{self.run.id}.{self.path}" if self.path else self.run.id
        if not self._tokens:
            return await backend.open(
                name,
                namespace=settings.namespace,
                deadline=self.run.deadline,
                priority=settings.priority,
                branch=self.key,
            )
        snapshot = Snapshot(
            backend.capabilities.fingerprint,
            tuple(self._tokens),
            branch=self.key,
            namespace=settings.namespace,
        )
        return await backend.restore(snapshot, name)

    @property
    def opened(self) -> Session | None:
        """The session if it is open."""
        return self._session

    def adopt(self, session: Session) -> None:
        """Go on with `session`, which holds everything said so far."""
        self._session = session
        self._pending = []

    def append(self, segments: Sequence[Segment]) -> None:
        """Put segments at the end, now or when the session opens."""
        if self._session is None:
            self._pending.extend(segments)
        else:
            self._session.append(segments)

    def restore(self, kept: SessionState) -> None:
        """Let the session, when it opens, begin as it was recorded."""
        self._tokens[kept.keep :] = kept.tokens
        self._pending = list(kept.pending)
        self.key = kept.branch

    async def kept(self) -> SessionState | None:
        """The session for the record: how it differs from the last call."""
        backend = await self.run.backend()
        if not backend.capabilities.snapshot or self._session is None:
            return None
        snapshot = await self._session.snapshot()
        keep = 0
        for old, new in zip(self._tokens, snapshot.tokens, strict=False):
            if old != new:
                break
            keep += 1
        self._tokens = list(snapshot.tokens)
        new_tokens = snapshot.tokens[keep:]
        return SessionState(keep, new_tokens, snapshot.pending, snapshot.branch)

    # --- children

    def child(self) -> Branch:
        """A new branch with this one's past; its session is the caller's to give."""
        child = Branch(self.run, self._child_path(), self)
        self.run.record.split(child.path, self.path)
        return child

    def fresh(self) -> Branch:
        """A new branch with no past."""
        return Branch(self.run, self._child_path())

    def _child_path(self) -> str:
        index = self._children
        self._children += 1
        return f"{self.path}.{index}" if self.path else str(index)

    def inherit(self) -> None:
        """Take the parent's past as it is now (its lane may have moved since the fork)."""
        assert self.parent is not None
        self.variables = dict(self.parent.variables)
        self.meta = dict(self.parent.meta)
        self.transcript = self.parent.transcript.copy()
        self.inherited_pieces = len(self.transcript.pieces)
        self._pending = list(self.parent._pending)
        self._tokens = list(self.parent._tokens)
        self.run.record.split(self.path, self.parent.path)

    def slot(self) -> str:
        """A name for a call that may run beside others of this branch, in order of calling."""
        self._slots += 1
        return f"~{self._slots - 1}"

    # --- the lane

    def enqueue(self, work: Callable[[], Coroutine[Any, Any, Any]], site: Site) -> None:
        """Do `work` after everything queued before it, unless that fails."""
        self._lane = [task for task in self._lane if not task.done()]
        before = self._lane[-1] if self._lane else None
        self._lane.append(self.run.spawn(self._follow(before, work, site)))

    async def _follow(
        self,
        before: asyncio.Task[None] | None,
        work: Callable[[], Awaitable[Any]],
        site: Site,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        if self.error is not None:
            return
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whoever reads from the branch raises it
            self.error = error
            self.run.locate(error, site)
        except asyncio.CancelledError:
            self.error = Cancelled("this branch was cancelled", hint="another one failed first")
            self.run.locate(self.error, site)
            raise

    async def idle(self) -> None:
        """Wait until nothing is queued. Does not raise the branch's error."""
        while waiting := [task for task in self._lane if not task.done()]:
            await asyncio.wait(waiting)

    async def settle(self) -> None:
        """Wait until nothing is queued. Raises the branch's error."""
        await self.idle()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the branch's error, if it has one; from then on the program knows of it."""
        if self.error is not None:
            self.error_seen = True
            raise self.error

    async def abandon(self) -> None:
        """Cancel what is queued or running on this branch."""
        for task in self._lane:
            task.cancel()
        await self.idle()

    async def close(self) -> None:
        """Give the session back to the engine."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
