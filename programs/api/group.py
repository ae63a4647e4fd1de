"""The states that a fork returns.

What lives here: `StateGroup`. What does not: the branches (`executor/forking.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from phloem.errors import CompileError
from phloem.programs.executor import forking
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.frame import Handle, current

__all__ = ["StateGroup"]


class _State(Protocol):
    """What a group asks of its states."""

    _branch: Branch

    def __iadd__(self, value: Any) -> Any: ...
    def error(self) -> BaseException | None:
        """The branch's error."""
        ...


S = TypeVar("S", bound=_State)


class StateGroup(Sequence[S], Generic[S]):
    """Forked states, by index. They run side by side until they are read or joined."""

    def __init__(self, parent: Handle, states: list[S]) -> None:
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index: int | slice) -> S | list[S]:
        return self._states[index]

    def __setitem__(self, index: int, state: S) -> None:
        # `forks[i] += x` stores the very state back that it read.
        if self._states[index] is not state:
            raise CompileError(
                "a branch of a fork can't be replaced", hint="append to it: forks[i] += ..."
            )

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    def __iadd__(self, value: Any) -> StateGroup[S]:
        """Append to every branch: a list gives each its own, a function is called with each
        index, anything else is the same for all."""
        if isinstance(value, list | tuple):
            if len(value) != len(self):
                raise CompileError(
                    f"a list of {len(value)} for {len(self)} branches",
                    hint="give one item for each branch",
                )
            items = list(value)
        elif isinstance(value, Callable):  # type: ignore[arg-type] # an ABC at run time
            items = [value(index) for index in range(len(self))]
        else:
            items = [value] * len(self)
        for state, item in zip(self._states, items, strict=True):
            state += item  # noqa: PLW2901 - appends in place
        return self

    def join(
        self, mode: forking.JoinMode = "gather_variable", *, on_error: forking.OnError = "raise"
    ) -> None:
        """Wait for all branches and bring their variables (or texts) into the parent.

        Every variable that a branch has set becomes a list in the parent, one value for each
        branch, in order; None where a branch did not set it. With on_error="keep" a failed
        branch's values are its exception; else its error is raised and its siblings cancelled.
        """
        frame = current()
        if frame is None:
            raise CompileError("join() outside of the running program", hint="call it inside")
        branches = [state._branch for state in self._states]
        forking.join(frame, self._parent._branch, branches, mode, on_error)

    @property
    def errors(self) -> list[BaseException | None]:
        """Each branch's error, or None, in order. Waits for all."""
        return [state.error() for state in self._states]
