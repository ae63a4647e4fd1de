"""`@function`: from a Python function to a program that can be run.

What lives here: the decorator and `Program`. What does not: batches (`batch.py`), event
streams (`stream.py`), compiling (`compiler/`) and running (`executor/`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

from phloem.errors import CompileError, JournalError
from phloem.programs import registry
from phloem.programs.api import start
from phloem.programs.api.batch import BatchOptions, gather, run_rows
from phloem.programs.api.replay import again
from phloem.programs.api.state import ProgramState
from phloem.programs.api.stream import EventStream
from phloem.programs.api.templates import Templates
from phloem.programs.check import Finding
from phloem.programs.compiler.build import Compiled, compile_function
from phloem.programs.compiler.source import written
from phloem.programs.executor import hub, loop
from phloem.programs.executor.frame import Handle, asynchronous, current
from phloem.programs.executor.record import Mode, Record
from phloem.programs.executor.rewind import Prompt, rewind, reword
from phloem.programs.graph import StateGraph
from phloem.programs.identity import program_hash
from phloem.programs.protocol import Backend

__all__ = ["Program", "function"]

STATE_NAME = "s"


class Program:
    """A compiled program. Calling it runs it: see `__call__`."""

    __phloem_kind__ = "call"

    def __init__(
        self,
        function: types.FunctionType,
        *,
        num_api_spec_tokens: int | None = None,
        prompts: Mapping[str, str] | str | Path | None = None,
        name: str | None = None,
        opaque: str | None = None,
    ) -> None:
        if not isinstance(function, types.FunctionType):
            raise CompileError(
                f"@function takes a Python function, not {type(function).__name__}",
                hint="decorate a `def` or an `async def`",
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise CompileError(
                f"{function.__name__} is a generator",
                hint="return the value; read text as it comes with stream() or text_iter()",
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or function.__name__
        self.num_api_spec_tokens = num_api_spec_tokens
        self._prompts = prompts
        self._bound: dict[str, Any] = {}
        self._origin: Program | None = None
        self._opaque = opaque
        self._signature = inspect.signature(function)
        self.state_parameter = _state_parameter(self._signature)

    # --- what it is

    @property
    def style(self) -> str:
        """ "state" if the first parameter is the state, else "value"."""
        return "value" if self.state_parameter is None else "state"

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The program's own parameters, the state left out."""
        return tuple(p for p in self._signature.parameters if p != self.state_parameter)

    @property
    def func(self) -> types.FunctionType:
        """The Python function, under SGLang's name."""
        return self.function

    @functools.cached_property
    def templates(self) -> Templates:
        """The prompt templates of a value-style program."""
        if self._origin is not None:
            return self._origin.templates
        return Templates(self._prompts, Path(written(self.function).co_filename).parent)

    @functools.cached_property
    def compiled(self) -> Compiled:
        """The graph and its code, compiled when first needed."""
        if self._origin is not None:
            return self._origin.compiled
        return compile_function(self.function, self.state_parameter, self.name, opaque=self._opaque)

    @property
    def graph(self) -> StateGraph:
        """The program's state graph."""
        return self.compiled.graph

    def identity(self, *settings: str) -> str:
        """The hash that decides whether a record is of this program: its code, the helpers it
        reaches, its prompts, and `settings` (a model's fingerprint, retrieval settings)."""
        prompts = {} if self.state_parameter is not None else self.templates.sources()
        return program_hash(self.function, prompts, *settings)

    def check(self) -> list[Finding]:
        """What is wrong with the program, found without running it."""
        return start.check(self)

    def bind(self, /, **arguments: Any) -> Program:
        """The same program with some arguments fixed. Fixing one twice, or giving it again at
        the call, is a `CompileError`."""
        for name in arguments:
            if name not in self.parameters:
                raise CompileError(
                    f"{self.name}() has no parameter {name!r}",
                    hint=f"it has: {', '.join(self.parameters) or 'none'}",
                )
            self._refuse_twice(name)
        made = Program(
            self.function,
            num_api_spec_tokens=self.num_api_spec_tokens,
            prompts=self._prompts,
            name=self.name,
            opaque=self._opaque,
        )
        made._bound = {**self._bound, **arguments}
        made._origin = self._origin or self
        return made

    def _refuse_twice(self, name: str) -> None:
        if name in self._bound:
            raise CompileError(
                f"the argument {name!r} of {self.name}() is bound already",
                hint="bind() and the call may not both give it",
            )

    def trace(self, *, backend: Backend | None = None, **arguments: Any) -> StateGraph:
        """The state graph, which needs no run; the arguments are accepted for SGLang's sake."""
        del backend, arguments
        return self.graph

    def cache(self, backend: Backend | None = None) -> int:
        """Prefill and keep the program's constant prefix; returns its tokens."""
        return loop.call(start.pin_prefix(self, backend or registry.default("backend")))

    # --- running it

    def bind_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The call's arguments by parameter, defaults filled in, the state as None.

        Raises `CompileError` for a missing, unknown or doubled argument.
        """
        for name in kwargs:
            self._refuse_twice(name)
        given = {**self._bound}
        if self.state_parameter is not None:
            given[self.state_parameter] = None
        free = [p for name, p in self._signature.parameters.items() if name not in given]
        asked = self._signature.replace(parameters=free)
        try:
            bound = asked.bind(*args, **kwargs)
        except TypeError as error:
            hint = f"its parameters: {asked}"
            if self.state_parameter is None:
                hint += "; a state would be its first parameter, called s or annotated ph.State"
            raise CompileError(f"{self.name}(): {error}", hint=hint) from None
        bound.apply_defaults()
        values = {**given, **bound.arguments}
        ordered = {name: values[name] for name in self._signature.parameters}
        return inspect.BoundArguments(self._signature, OrderedDict(ordered))

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program and return its finished state; `.value` is what it returned.

        Keyword arguments that are parameters of the program are its arguments. All others are
        settings: the sampling arguments of `gen` (defaults for every step), `seed`, `backend`,
        `retriever`, `deadline` (seconds), `token_budget`, `namespace`, `priority`, `step_cache`
        (a mapping that keeps the results of greedy and seeded steps), `record=True` (see
        `state.record()`), and `stream=True`, with which the state is returned at once and
        read as it grows.

        Raises the program's own error, its type unchanged, with program, node, source line
        and trace id attached (`phloem.errors.where_of`). Inside another program it runs on a
        fresh session of the same run.
        """
        outer = current()
        if outer is not None:
            return start.nested_fresh(self, outer, args, kwargs)
        started = start.prepare(self, args, kwargs)
        started.run.watched = started.stream
        future = loop.submit(started.coroutine)
        if not started.stream:
            loop.wait(future)
        return started.state

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`run` for an event loop of your own. Inside an async program, and in tasks that it
        starts, it runs on a fresh session of the same run, as `run` does."""
        outer = asynchronous()
        if outer is not None:
            return await hub.drive(lambda: start.nested_fresh(self, outer, args, kwargs))
        started = start.prepare(self, args, kwargs)
        started.run.watched = started.stream
        if not started.stream:
            await asyncio.wrap_future(loop.submit(started.coroutine))
        else:
            loop.submit(started.coroutine)
        return started.state

    def stream(self, *args: Any, **kwargs: Any) -> EventStream:
        """Start the program; iterate (`for` or `async for`) over its events as they come.

        The iteration ends by raising the program's error, if it has one. Leaving it early
        cancels the run, and so does the stream's `cancel()`.
        """
        started = start.prepare(self, args, kwargs)
        return EventStream(started.state, loop.submit(started.coroutine))

    def replay(self, record: Mapping[str, Any], *, changed: bool = False) -> ProgramState:
        """Run the program again from the record of a run, with no engine and no services.

        Raises `NonDeterminism`, naming the first difference, if the program asks for anything
        that the record does not answer, or is another program (`changed=True` allows that).
        """
        return self._again(Record.from_json(record), "replay", {}, changed)

    def resume(
        self, record: Mapping[str, Any], *, changed: bool = False, **settings: Any
    ) -> ProgramState:
        """Run the program again, recorded effects answered from the record, and go on from its
        end with an engine. Settings are those of `run`; sampling arguments are the recorded."""
        return self._again(Record.from_json(record), "resume", settings, changed)

    def rewind(
        self,
        record: Mapping[str, Any],
        at: tuple[str, int] | str,
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - says what it does
        prompt: Prompt | None = None,
        changed: bool = False,
        **settings: Any,
    ) -> ProgramState:
        """Go on from an earlier effect: `at` is its address (branch path, sequence number) or
        the name of its variable. `set` gives that variable another value first; or `prompt`
        replaces the text that the program put in for this gen or select since the one before (a
        list, None for what stays, if it put in several). Role markers stay, and special tokens
        spelled in `prompt` are ordinary text. What came before is answered from the record, and
        its KV is reused where the cache has it."""
        known = Record.from_json(record)
        if prompt is None:
            cut = rewind(known, at, set or {})
        elif set:
            raise JournalError(
                "a rewind changes a value or a prompt, not both", hint="leave out set= or prompt="
            )
        else:
            cut = reword(known, at, prompt)
        return self._again(cut, "resume", settings, changed)

    def follow(self, record: Mapping[str, Any], **settings: Any) -> ProgramState:
        """Run a changed program again: effects that are as recorded are answered from the
        record, and from the first that differs on (on each branch) it runs anew."""
        return self._again(Record.from_json(record), "follow", settings, changed=True)

    def _again(
        self,
        record: Record,
        mode: Mode,
        settings: Mapping[str, Any],
        changed: bool,
    ) -> ProgramState:
        started = again(self, record, mode, settings, changed=changed)
        loop.wait(loop.submit(started.coroutine))
        return started.state

    @overload
    def run_batch(
        self,
        batch: Iterable[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        order: Literal["submitted", "completed"] = "submitted",
        on_error: Literal["return", "raise"] = "return",
        results_file: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(
        self,
        batch: Iterable[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        order: Literal["submitted", "completed"] = "submitted",
        on_error: Literal["return", "raise"] = "return",
        results_file: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> Iterator[ProgramState]: ...
    def run_batch(
        self,
        batch: Iterable[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        order: Literal["submitted", "completed"] = "submitted",
        on_error: Literal["return", "raise"] = "return",
        results_file: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run the program for every row: a dict of arguments, or a tuple of them.

        Returns the list of finished states in order; a row that failed holds its own error
        (`state.error()`; reading from it raises it). on_error="raise" raises `BatchFailed`,
        with all states attached, once all rows are done; so does an iterator of rows that
        fails, with the states of the rows before. `generator_style` yields states as
        they come, from an iterator of any length, with bounded memory; `order="completed"`
        yields whichever is ready. `num_threads` is how many rows run at once (on one thread).
        `results_file` (JSON lines) keeps finished rows; a second batch skips those whose
        arguments, sampling arguments and program are as they were; another model wants another
        file.
        Other keywords are settings of every run, as for `run`. Inside another program the rows
        run on fresh sessions of the same run, and take sampling arguments only.
        """
        options = BatchOptions(
            num_threads, progress_bar, order, on_error, results_file, generator_style
        )
        options.check()
        states = run_rows(self, batch, settings, options)
        return states if generator_style else gather(states, on_error)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. A state-style program returns its state, a value-style one its value.

        Inside another program, a state-style program given a state as its first argument
        goes on with that state and returns its value; a value-style one goes on with the
        run's session.
        """
        if current() is not None:
            if self.state_parameter is not None and args and isinstance(args[0], Handle):
                return start.nested_shared(self, args[0], args[1:], kwargs)
            if self.state_parameter is None:
                return start.nested_shared(self, None, args, kwargs)
        state = self.run(*args, **kwargs)
        return state.value if self.state_parameter is None else state

    def __get__(self, instance: Any, owner: type | None = None) -> Program:
        """A program that is a method has its `self` bound, one of a class its `cls`."""
        first = next(iter(self._signature.parameters), "")
        if first == "cls":
            return self.bind(cls=owner)
        return self if instance is None or first != "self" else self.bind(self=instance)

    def __reduce__(self) -> Any:
        """Programs are pickled, as functions are, by the name under which they are found."""
        if self._origin is not None:
            return _bound, (self._origin, self._bound)
        return self.function.__qualname__

    def __repr__(self) -> str:
        return f"<phloem program {self.name}{self._signature}>"


def _bound(origin: Program, arguments: Mapping[str, Any]) -> Program:
    return origin.bind(**arguments)


def _state_parameter(signature: inspect.Signature) -> str | None:
    """The name of the first parameter (after `self` or `cls`) if it is the state: called `s`, or
    annotated so."""
    for index, parameter in enumerate(signature.parameters.values()):
        if index == 0 and parameter.name in {"self", "cls"}:
            continue
        annotation = parameter.annotation
        if isinstance(annotation, type) and issubclass(annotation, Handle):
            return parameter.name
        if isinstance(annotation, str) and annotation.rsplit(".", 1)[-1] in {
            "State",
            "ProgramState",
        }:
            return parameter.name
        return parameter.name if parameter.name == STATE_NAME else None
    return None


@overload
def function(function: Callable[..., Any], /) -> Program: ...
@overload
def function(
    *,
    num_api_spec_tokens: int | None = None,
    prompts: Mapping[str, str] | str | Path | None = None,
    name: str | None = None,
    opaque: bool = False,
) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    num_api_spec_tokens: int | None = None,
    prompts: Mapping[str, str] | str | Path | None = None,
    name: str | None = None,
    opaque: bool = False,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function.

    The first parameter decides the style: named `s` or annotated `ph.State` it is the state
    (state style), else the program is in value style and `prompts` holds its templates (a
    mapping of names to Jinja2 texts, or a folder relative to the program's file).
    `opaque=True` keeps the compiler out: the whole function is one node, run as it stands.
    `num_api_spec_tokens` is accepted for SGLang's sake: embedded engines need no speculation
    over an API.

    All runs of a process share one thread: a statement that blocks (network, sleep, long
    computation) holds up every run, so it belongs in a `tool`, which has threads of its own.
    """

    def make(inner: Callable[..., Any]) -> Program:
        if isinstance(inner, staticmethod | classmethod):
            inner = inner.__func__
        if not isinstance(inner, types.FunctionType):
            raise CompileError(
                f"@function takes a Python function, not {type(inner).__name__}",
                hint="decorate a `def` or an `async def`",
            )
        return Program(
            inner,
            num_api_spec_tokens=num_api_spec_tokens,
            prompts=prompts,
            name=name,
            opaque="the program asks for it" if opaque else None,
        )

    return make if function is None else make(function)
