"""The state machine: (node, variables, session) -> next node.

What lives here: stepping through a compiled program's nodes, and the three helpers that its
fragments call. What does not: effects (`perform.py`) or the run around it (`driver.py`).

The machine itself is plain code inside the run's greenlet: a fragment that reaches a step, in
whatever depth, suspends all of it. So a node is exact Python and yet never holds a thread.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from phloem.errors import CompileError
from phloem.programs.compiler.build import Compiled, Op
from phloem.programs.effects import Choose, Effect, Generate, to_expression
from phloem.programs.events import BranchTaken, Ran
from phloem.programs.executor import hub, witness
from phloem.programs.executor.deferred import Deferred
from phloem.programs.executor.frame import Frame, Handle, current, enter, leave
from phloem.programs.executor.run import Site
from phloem.programs.executor.services import start_search

__all__ = ["execute"]


def execute(compiled: Compiled, frame: Frame, arguments: Sequence[Any]) -> Any:
    """Run a program in the current greenlet and return its value.

    `arguments` are the function's parameters in order, bound (a *args parameter is its tuple).
    An error leaves with program, node and source line attached.
    """
    token = enter(frame)
    machine: _Machine | None = None
    try:
        if compiled.factory is None:
            return _call_whole(compiled, frame)
        machine = _Machine(compiled, frame, arguments)
        return machine.run()
    except BaseException as error:
        if frame.run.settings.trace_values and frame.run.last_values is None:
            known = machine.values() if machine is not None else {}
            frame.run.last_values = {**known, **witness.locals_of(error, frame.file)}
        for deferred in (*frame.deferred, *frame.searches):
            deferred.cancel()
        frame.run.locate(error, _place_of(error, frame))
        raise
    finally:
        leave(token)


def _call_whole(compiled: Compiled, frame: Frame) -> Any:
    node = next(iter(compiled.graph.nodes.values()))
    frame.node, frame.line = node.id, node.line
    value = compiled.function(*frame.bound.args, **frame.bound.kwargs)
    value = hub.run_coroutine(value) if isinstance(value, types.CoroutineType) else value
    frame.settle()
    return value


def _place_of(error: BaseException, frame: Frame) -> Site:
    """The line of the program's file that the error came through last."""
    line = frame.line
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == frame.file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return Site(frame.program, frame.node, frame.file, line)


class _Machine:
    def __init__(self, compiled: Compiled, frame: Frame, arguments: Sequence[Any]) -> None:
        assert compiled.factory is not None
        self._compiled, self._frame = compiled, frame
        self._temps: list[Any] = [None] * compiled.temps
        self._fragments: tuple[Callable[[], Any], ...] = compiled.factory(
            self._temps, add, Iteration, defer, *arguments
        )
        self._cells: dict[str, types.CellType] = {}
        for fragment in self._fragments:
            names = fragment.__code__.co_freevars
            self._cells.update(zip(names, fragment.__closure__ or (), strict=True))

    def run(self) -> Any:
        op: Op | None = self._compiled.ops[self._compiled.graph.entry]
        while op is not None:
            node = self._compiled.graph.nodes[op.node]
            self._frame.node, self._frame.line = node.id, node.line
            self._look_ahead(op)
            self._resolve(op)
            value = self._fragment(op)
            self._hint(op, node.kind)
            self._settle_captured(node.writes)
            if op.role == "return":
                self._resolve_all()
                return value.value() if isinstance(value, Deferred) else value
            op = self._next(op, node.kind, value, node.writes)
        return None

    def _look_ahead(self, op: Op) -> None:
        """Start the retrievals that are certain to follow, if all they need is there."""
        run = self._frame.run
        for node, fragment in op.early:
            if run.has_early(node) or run.record.replaying(self._frame.branch.path):
                continue
            try:
                effect = self._fragments[fragment]()
            except (NameError, TypeError, CompileError):
                continue  # a variable is not set, or the call is wrong: its own place will tell
            values = [effect.query, *effect.options.values()]
            if all(isinstance(value, str | int | float) for value in values):
                run.start_early(node, effect, run.spawn(start_search(run, effect)))

    def _hint(self, op: Op, kind: str) -> None:
        """Tell the engine when the session it just used is used again."""
        session = self._frame.branch.opened
        if kind in {"gen", "select"} and session is not None:
            session.hint(op.next_use, f"{self._frame.program}:{op.node}")

    def _fragment(self, op: Op) -> Any:
        fragment = self._fragments[op.fragment]
        try:
            value = fragment()
            return hub.run_coroutine(value) if op.is_async else value
        except NameError as error:
            raise _as_local(error, fragment.__code__) from error.__cause__

    def _next(self, op: Op, kind: str, value: Any, writes: tuple[str, ...]) -> Op | None:
        site = Site(self._frame.program, op.node, self._frame.file, self._frame.line)
        path = self._frame.branch.path
        if op.role == "test":
            yes, no = ("next", "done") if kind == "loop" else ("true", "false")
            label = yes if value else no
            self._frame.run.emit(BranchTaken, site, path, taken=label)
        else:
            label = value if value is not None else "next"
            if kind == "python":
                traced = self._frame.run.settings.trace_values
                values = self.values(writes) if traced else None
                self._frame.run.emit(Ran, site, path, wrote=writes, values=values)
            elif kind == "join":
                self._resolve_all()
        target = op.exits.get(label)
        return None if target is None else self._compiled.ops[target]

    def values(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """A glance at the program's variables (None: at all) as they are now."""
        return witness.variables(self._cells, self._cells if names is None else names)

    # --- values of steps that run beside the program

    def _resolve(self, op: Op) -> None:
        """Put the values in place that this node may look at."""
        if not self._frame.deferred:
            return
        for index in op.temps:
            if isinstance(self._temps[index], Deferred):
                self._temps[index] = self._temps[index].value()
        for name in op.reads:
            self._resolve_cell(name)

    def _settle_captured(self, writes: tuple[str, ...]) -> None:
        """Wait for a value that code the graph can't see may read next."""
        if self._frame.deferred:
            for name in self._compiled.captured.intersection(writes):
                self._resolve_cell(name)

    def _resolve_cell(self, name: str) -> None:
        cell = self._cells.get(name)
        try:
            content = cell.cell_contents if cell is not None else None
        except ValueError:  # unbound
            return
        if cell is not None and isinstance(content, Deferred):
            cell.cell_contents = content.value()

    def _resolve_all(self) -> None:
        for deferred in self._frame.deferred:
            deferred.value()
        for name in self._cells:
            self._resolve_cell(name)
        self._frame.deferred.clear()
        self._frame.settle()


def _as_local(error: NameError, fragment: types.CodeType) -> NameError:
    """Python's own error for an unbound local: in a fragment the local is a free variable."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    own = trace is not None and trace.tb_frame.f_code is fragment
    if not own or not str(error).startswith("cannot access free variable"):
        return error
    local = UnboundLocalError(
        f"cannot access local variable {error.name!r} where it is not associated with a value"
    )
    local.name = error.name
    return local.with_traceback(error.__traceback__)


class Iteration:
    """A `for` loop's iterator and its current item."""

    __slots__ = ("_iterator", "item")

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterator = iter(iterable)
        self.item: Any = None

    def more(self) -> bool:
        """Advance; False at the end."""
        try:
            self.item = next(self._iterator)
        except StopIteration:
            return False
        return True


class _Adding:
    """`state += value` taken apart: each node does its part of the effects, in order."""

    __slots__ = ("_handle", "_items", "result")

    def __init__(self, handle: Handle, value: Any) -> None:
        self._handle = handle
        self._items: deque[Effect] = deque(to_expression(value).items)
        self.result = handle

    def advance(self, kind: str, is_last: bool) -> None:
        """Do the next effects: text up to the next step, with the step unless `kind` is
        "append"; all that are left if this is the last node."""
        frame = current()
        assert frame is not None
        while self._items:
            step = isinstance(self._items[0], Generate | Choose)
            if step and kind == "append" and not is_last:
                return
            frame.act(self._handle._branch, self._items.popleft())
            if step and not is_last:
                return


class _Added:
    """`target += value` where the target is no state after all: plain Python."""

    __slots__ = ("result",)

    def __init__(self, result: Any) -> None:
        self.result = result

    def advance(self, kind: str, is_last: bool) -> None:
        """Nothing is left to do."""


def add(target: Any, value: Any) -> _Adding | _Added:
    """Begin `target += value`."""
    if isinstance(target, Handle):
        return _Adding(target, value)
    return _Added(_iadd(target, value))


def _iadd(target: Any, value: Any) -> Any:
    target += value
    return target


def defer(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """`primitive`, allowed to return a `Deferred` for this one call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        frame = current()
        assert frame is not None
        frame.may_defer = True
        try:
            return primitive(*args, **kwargs)
        finally:
            frame.may_defer = False

    return call
