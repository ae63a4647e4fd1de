"""Branches of a run: splitting, gathering, and what becomes of a branch that fails.

What lives here: `fork` and `join`. What does not: the user's group object (`api/group.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from phloem.errors import Cancelled, CompileError
from phloem.programs.effects import AddText
from phloem.programs.events import Forked, Joined
from phloem.programs.executor import hub
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.frame import Frame

__all__ = ["JoinMode", "OnError", "close", "fork", "join", "share_session"]

JoinMode = Literal["gather_variable", "concate_and_append"]
OnError = Literal["raise", "keep"]


def fork(frame: Frame, branch: Branch, size: int) -> list[Branch]:
    """`size` children that go on from `branch`. A queued branch splits when its lane is there."""
    if not isinstance(size, int) or size < 0:
        raise CompileError(f"fork({size!r}) is not a number of branches", hint="give 0 or more")
    site = frame.site()
    children = [branch.child() for _ in range(size)]
    branch.run.emit(Forked, site, branch.path, children=tuple(child.path for child in children))
    if not children:
        return []
    frame.forked += children
    if not branch.queued:
        hub.wait(share_session(branch, children))
        return children
    split: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    branch.enqueue(lambda: _split(branch, children, split), site)
    for child in children:
        child.enqueue(lambda: _after_split(branch, split), site)
    return children


async def _split(branch: Branch, children: Sequence[Branch], split: asyncio.Future[None]) -> None:
    try:
        for child in children:
            child.inherit()
        await share_session(branch, children)
    finally:
        split.set_result(None)


async def _after_split(branch: Branch, split: asyncio.Future[None]) -> None:
    """A child's first work: wait for the split, which never comes if the parent fails first."""
    waiting = asyncio.ensure_future(branch.idle())
    try:
        await asyncio.wait([split, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    branch.raise_error()


async def share_session(branch: Branch, children: Sequence[Branch]) -> None:
    """Give each child a session that shares the branch's KV.

    While recorded effects are handed back no session is needed; children that come to need
    one open it from their own past.
    """
    record = branch.run.record
    if branch.opened is None and any(record.replaying(b.path) for b in (branch, *children)):
        return
    session = await branch.session()
    keys = [child.key for child in children]
    copies = await session.fork(len(children), branches=keys)
    for child, copy in zip(children, copies, strict=True):
        child.adopt(copy)


def join(
    frame: Frame,
    parent: Branch,
    children: Sequence[Branch],
    mode: JoinMode,
    on_error: OnError,
) -> None:
    """Wait for the children and bring what they made into the parent.

    "gather_variable" gives the parent, for every variable that any child has set, the list of
    the children's values, in order; "concate_and_append" appends their new texts, in order.
    With on_error="raise" the first failure cancels the siblings and is raised; with "keep" a
    failed child's place in each list holds its exception.
    """
    if mode not in {"gather_variable", "concate_and_append"}:
        raise CompileError(
            f"join({mode!r}) is not known", hint="use gather_variable or concate_and_append"
        )
    site = frame.site()
    hub.wait(_wait_all(children, on_error))
    close(frame, children)
    for child in children:
        if child.opened is not None:
            child.opened.hint(None)
    failed = [child for child in children if child.error is not None]
    paths = tuple(child.path for child in children)
    parent.run.emit(
        Joined, site, parent.path, children=paths, failed=tuple(child.path for child in failed)
    )
    if failed and on_error == "raise":
        first = next((c for c in failed if not _cancelled(c)), failed[0])
        error = first.error
        assert error is not None
        error.add_note(f"in branch {children.index(first)} of {len(children)} ({first.path})")
        for child in failed:
            child.error_seen = True
        raise error
    for child in failed:
        child.error_seen = True
        parent.run.record.settle_failure(child.path)
    if mode == "gather_variable":
        names = dict.fromkeys(name for child in children for name in child.written)
        for name in names:
            parent.set(name, [_value(child, name) for child in children])
        return
    for child in children:
        new = "".join(child.transcript.pieces[child.inherited_pieces :])
        if new:
            frame.act(parent, AddText(new))


def close(frame: Frame, children: Sequence[Branch]) -> None:
    """The children are no longer open: what follows is not beside them."""
    frame.forked = [branch for branch in frame.forked if branch not in children]


def _cancelled(child: Branch) -> bool:
    return isinstance(child.error, Cancelled)


def _value(child: Branch, name: str) -> Any:
    if child.error is not None:
        return child.error
    return child.variables[name] if name in child.written else None


async def _wait_all(children: Sequence[Branch], on_error: OnError) -> None:
    tasks = {asyncio.ensure_future(child.idle()): child for child in children}
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if on_error == "raise" and any(tasks[task].error is not None for task in done):
            for child in children:
                await child.abandon()
