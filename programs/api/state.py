"""The state that a program holds as `s`, and that `run()` returns.

What lives here: `ProgramState`. What does not: the branch behind it (`executor/branch.py`) or
the group that a fork returns (`group.py`).

Inside its program every read is immediate (a child's reads wait for the child). Outside, a read
of a running state waits; a run that fails wakes every reader with the run's own error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from phloem.errors import CompileError, ProgramError
from phloem.programs.api.group import StateGroup
from phloem.programs.effects import (
    Effect,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    to_expression,
)
from phloem.programs.events import AnyEvent, Appended, StepFinished, Token
from phloem.programs.executor import forking, hub, loop
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.frame import Frame, Handle, current
from phloem.programs.explain import StepReport, explain
from phloem.programs.protocol import Usage

__all__ = ["ProgramState", "State"]

_UNSET: Any = object()


class ProgramState(Handle):
    """A program's text, variables and result."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self._value: Any = _UNSET

    # --- writing, inside the program

    def __iadd__(self, value: Any) -> ProgramState:
        """Append text, a primitive's expression, or a list of such."""
        for effect in to_expression(value).items:
            self._act(effect)
        return self

    def __add__(self, value: Any) -> ProgramState:
        raise CompileError("a state is appended to in place", hint="write s += ...")

    def _act(self, effect: Effect) -> None:
        self._frame().act(self._branch, effect)

    def _frame(self) -> Frame:
        frame = current()
        if frame is None or frame.run is not self._branch.run:
            raise ProgramError(
                "this state can only be extended inside its own running program",
                hint="write a @function that takes the text as an argument",
            )
        return frame

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable of the state."""
        self._ready(name)
        self._branch.set(name, value)

    @contextmanager
    def _between(self, begin: Effect, end: Effect) -> Iterator[None]:
        self._act(begin)
        yield
        self._act(end)

    def system(self, value: Any = None) -> Any:
        """`with s.system():` opens a system message; `s.system(value)` is a whole one."""
        return self._role("system", value)

    def user(self, value: Any = None) -> Any:
        """`with s.user():` opens a user message; `s.user(value)` is a whole one."""
        return self._role("user", value)

    def assistant(self, value: Any = None) -> Any:
        """`with s.assistant():` opens an assistant message; with a value it is a whole one."""
        return self._role("assistant", value)

    def _role(self, role: str, value: Any) -> Any:
        if value is None:
            return self._between(RoleBegin(role), RoleEnd(role))
        for effect in (RoleBegin(role), *to_expression(value).items, RoleEnd(role)):
            self._act(effect)
        return None

    def var_scope(self, name: str) -> Any:
        """`with s.var_scope(name):` keeps the text appended inside as variable `name`."""
        return self._between(ScopeBegin(name), ScopeEnd(name))

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None
    ) -> StateGroup[ProgramState]:
        """`size` states that go on from here, side by side, sharing the KV so far.

        `position_ids_offset` is accepted for SGLang's sake and has no effect.
        """
        del position_ids_offset
        frame = self._frame()
        children = forking.fork(frame, self._branch, size)
        return StateGroup(self, [ProgramState(child) for child in children])

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A state that goes on from here; at the end its variables come back as they are."""
        (child,) = self.fork(1)
        yield child
        hub.wait(child._branch.settle())
        forking.close(self._frame(), [child._branch])
        for name in child._branch.written:
            value, meta = child._branch.variables[name], child._branch.meta.get(name)
            self._branch.set(name, value, meta)

    # --- reading

    def _ready(self, name: str | None = None) -> None:
        """Wait until `name` (or everything) is there, or can never be."""
        branch = self._branch
        frame = current()
        if frame is not None and frame.run is branch.run:
            if branch.queued:
                hub.wait(branch.idle())
            return
        feed = branch.run.feed
        if feed.done:
            return
        if loop.on_loop_thread():
            raise ProgramError(
                "a blocking read of a running state on phloem's own event loop",
                hint="use text_async_iter() or arun() there",
            )
        feed.wait_for(lambda: name is not None and name in branch.variables)

    def __getitem__(self, name: str) -> Any:
        """The value of a variable. Raises the error of the step or run that should have set
        it, or `UnknownVariable` (a `KeyError`)."""
        self._ready(name)
        branch = self._branch
        if name not in branch.variables and branch.run.error is not None:
            raise branch.run.error
        return branch.get(name)

    get_var = __getitem__

    def __contains__(self, name: object) -> bool:
        """Whether a variable is set; waits while a step may still set it."""
        self._ready(str(name))
        return name in self._branch.variables

    def get_meta_info(self, name: str) -> Any:
        """Token counts, finish reason, log-probabilities or scores of the step `name`."""
        self[name]
        return self._branch.meta.get(name)

    def text(self) -> str:
        """All text, special tokens spelled out. Raises the run's error if it failed."""
        self._ready()
        self._raise()
        return self._branch.transcript.text()

    def messages(self) -> list[dict[str, str]]:
        """The chat messages. Raises the run's error if it failed."""
        self._ready()
        self._raise()
        return self._branch.transcript.messages()

    def variables(self) -> dict[str, Any]:
        """All variables set so far, for a finished or failed state alike."""
        return dict(self._branch.variables)

    def sync(self) -> None:
        """Wait until everything asked so far is done (or has failed: see `error`)."""
        self._ready()

    def error(self) -> BaseException | None:
        """The error of the run or the branch, or None. Waits for the end outside the run."""
        self._ready()
        error = self._branch.error
        if error is not None:
            self._branch.error_seen = True
        return error or self._branch.run.error

    def _raise(self) -> None:
        self._branch.raise_error()
        if self._branch.run.error is not None:
            raise self._branch.run.error

    @property
    def value(self) -> Any:
        """What the program's function returned. Raises the run's error if it failed."""
        if self._value is not _UNSET:
            return self._value
        self._ready()
        self._raise()
        return self._branch.run.value

    ret_value = value

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """The run's events so far."""
        return self._branch.run.feed.events

    @property
    def usage(self) -> Usage:
        """The run's tokens so far."""
        return self._branch.run.usage

    def explain(self) -> list[StepReport]:
        """What each step computed, reused and missed, and which line made it miss."""
        return explain(self.events)

    @property
    def trace_id(self) -> str:
        """The run's trace id."""
        return self._branch.run.trace_id

    def record(self) -> dict[str, Any]:
        """The record of a run that was started with `record=True`, as plain JSON.

        Raises `ProgramError` for any other run.
        """
        run = self._branch.run
        if not run.recording:
            raise ProgramError("this run was not recorded", hint="start it with record=True")
        self._ready()
        return run.record.to_json()

    # --- streaming

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Text as it comes: all of it, or that of one variable. One that no step has generated
        (`set_var`, `var_scope`, `join`) comes whole at the end.

        Raises the run's error, and `UnknownVariable` at the end for a variable that nothing set.
        """
        told = var_name is None
        for event in self._branch.run.feed:
            piece = _piece(event, var_name, self._branch.path)
            told = told or piece is not None
            if piece:
                yield piece
        self._raise()
        if not told:
            yield str(self[str(var_name)])

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """The same on any event loop, which is never blocked. With `return_meta_data` pairs of
        the text and the step's meta data, which is complete in the pair that ends the step (of a
        gen with the text "")."""
        told = var_name is None
        async for event in self._branch.run.feed:
            piece = _piece(event, var_name, self._branch.path)
            told = told or piece is not None
            if not return_meta_data:
                if piece:
                    yield piece
            elif piece is not None and (piece or isinstance(event, StepFinished)):
                name = str(getattr(event, "name", None))
                yield piece, self._branch.meta.get(name) or {}
        self._raise()
        if not told:
            whole = str(self[str(var_name)])
            yield (whole, {}) if return_meta_data else whole

    def __reduce__(self) -> NoReturn:
        raise ProgramError(
            "a state belongs to its run and can't be pickled or copied",
            hint="pass on what it holds: .value, .text(), .variables() or .messages()",
        )

    def __repr__(self) -> str:
        """The text so far."""
        return f"ProgramState({self._branch.transcript.text()})"


State = ProgramState
"""The name for annotations: `def program(state: ph.State, ...)`."""


def _piece(event: AnyEvent, var_name: str | None, path: str) -> str | None:
    """The text that an event adds to a state's (or a variable's) text."""
    if event.path != path:
        return None
    if isinstance(event, Appended):
        return event.text if var_name is None else None
    if not isinstance(event, Token | StepFinished) or var_name not in {None, event.name}:
        return None
    if isinstance(event, StepFinished) and event.kind != "select":
        return "" if event.kind == "gen" else None  # its text came before, as tokens
    return event.text
