"""The activation of a program: where its primitives find the run they belong to.

What lives here: `Frame`, the current one, and the base of the state handle. What does not:
running nodes (`machine.py`). Each run's greenlet has its own context, so `current()` is right
however many runs interleave on the thread.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from phloem.errors import ProgramError
from phloem.programs.effects import Effect, Search
from phloem.programs.executor import hub, loop
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.deferred import Deferred, PendingHits
from phloem.programs.executor.perform import perform
from phloem.programs.executor.run import Run, Site
from phloem.retrieval.base import Hits

__all__ = ["Frame", "Handle", "asynchronous", "current", "enter", "leave", "value_frame"]

_PACKAGE = str(Path(__file__).parents[2]) + os.sep


@dataclass
class Frame:
    """One call of a program. `templates` are its prompts, `args` its arguments by name."""

    run: Run
    branch: Branch
    program: str
    style: Literal["state", "value"]
    args: Mapping[str, Any]
    bound: inspect.BoundArguments
    templates: Any = None
    file: str | None = None
    depth: int = 0
    node: str | None = None
    line: int | None = None
    may_defer: bool = False
    parallel: bool = False
    deferred: list[Deferred] = field(default_factory=list)
    searches: list[Deferred] = field(default_factory=list)
    forked: list[Branch] = field(default_factory=list)
    """Branches that this call has split off and not joined yet."""

    def site(self) -> Site:
        """Where the program is: its node, and the innermost line of code that is not ours."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        if frame is None:
            return Site(self.program, self.node, self.file, self.line)
        return Site(self.program, self.node, frame.f_code.co_filename, frame.f_lineno)

    def ask(self, effect: Effect) -> Any:
        """Do an effect on the program's own branch, after all that is queued there, and return
        its value: what retrievals and tools do."""
        site = self.site()
        if self.branch.queued:
            hub.wait(self.branch.settle())
        return hub.wait(perform(self.branch, effect, site))

    def search(self, effect: Search) -> Hits:
        """Do a retrieval at once; or begin it, where others may run beside it: inside
        `parallel()`, and while branches are open, if the compiler knows the place (so that no
        `try` of the program's stands around it). The program goes on until it reads the hits."""
        if self.parallel or (self.may_defer and self.forked):
            return self.begin(effect)
        return self.ask(effect)  # type: ignore[no-any-return] # a search gives hits

    def begin(self, effect: Search) -> Hits:
        """Begin a retrieval, whose hits wait when they are read (or awaited)."""
        apart = replace(effect, slot=self.branch.slot())
        deferred = Deferred(self.run.spawn(perform(self.branch, apart, self.site())))
        self.searches.append(deferred)
        hits = PendingHits(deferred)
        self.branch.set(effect.name, hits)
        return hits

    def settle(self) -> None:
        """Wait for the retrievals that were begun. Raises the first error not raised yet."""
        for deferred in self.searches:
            deferred.settle()
        self.searches.clear()

    def act(self, branch: Branch, effect: Effect) -> Any:
        """Do an effect: at once on a trunk (its value is returned), in its lane on a child."""
        site = self.site()
        if branch.queued:
            branch.enqueue(lambda: perform(branch, effect, site), site)
            return None
        return hub.wait(perform(branch, effect, site))


class Handle:
    """What a program holds as its state: a branch. The public face is `api.state`."""

    def __init__(self, branch: Branch) -> None:
        self._branch = branch


def current() -> Frame | None:
    """The innermost program that is running here, or None."""
    frame: Frame | None = hub.active.get()
    return frame if hub.in_greenlet() else None


def asynchronous() -> Frame | None:
    """The program that started the task that this runs in, if it is such a task: there nothing
    may wait but `await`."""
    frame: Frame | None = hub.active.get()
    return frame if frame is not None and loop.on_loop_thread() else None


def value_frame() -> Frame | None:
    """The current program if it is in value style, where a step acts at once; else None.

    Raises `ProgramError` in a task or thread that such a program started: a step there would
    have nowhere to wait.
    """
    frame: Frame | None = hub.active.get()
    if frame is None or frame.style != "value":
        return None
    if not hub.in_greenlet():
        raise ProgramError(
            f"a step of {frame.program}() was called from a task or thread that it started",
            hint="call steps from the program's own code; parallel() runs them side by side",
        )
    return frame


def enter(frame: Frame) -> Any:
    """Make `frame` the current one; give the result to `leave`."""
    return hub.active.set(frame)


def leave(token: Any) -> None:
    """Go back to the frame before."""
    hub.active.reset(token)
