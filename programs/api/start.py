"""Starting runs: settings apart from arguments, the frame, nested programs, the pinned prefix.

What lives here: what `Program`'s methods have in common. What does not: the run's course
(`executor/driver.py`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from phloem.errors import CompileError, ProgramError
from phloem.programs.api.state import ProgramState
from phloem.programs.api.templates import Templates
from phloem.programs.check import Finding
from phloem.programs.compiler.build import Compiled
from phloem.programs.compiler.source import written
from phloem.programs.effects import Expression
from phloem.programs.events import Appended
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.driver import drive_run
from phloem.programs.executor.frame import Frame, Handle, current
from phloem.programs.executor.machine import execute
from phloem.programs.executor.record import Record
from phloem.programs.executor.run import Run, Settings, Site
from phloem.programs.executor.values import encode
from phloem.programs.nodes import Gen, Select
from phloem.programs.protocol import Backend, Segment, Special, Text, Usage
from phloem.programs.sampling import RUN_OPTIONS, clean

__all__ = [
    "APART",
    "SETTINGS",
    "Startable",
    "Started",
    "check",
    "failed",
    "nested_fresh",
    "nested_shared",
    "pin_prefix",
    "prepare",
    "restored",
]

MAX_DEPTH = 64
SETTINGS = frozenset(item.name for item in fields(Settings)) - {"sampling", "samples"}
"""What a whole run is told, and no program inside it."""
APART = SETTINGS - {"seed"}
"""Settings of a run that are not the program's words: how, where and with what it runs."""
_IGNORED = {"use_thread"}


class Startable(Protocol):
    """What starting needs to know of a program."""

    name: str
    function: Any
    state_parameter: str | None

    @property
    def compiled(self) -> Compiled:
        """Graph and code."""
        ...

    @property
    def templates(self) -> Templates:
        """Prompt templates."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters."""
        ...

    def identity(self) -> str:
        """The hash that decides "same program"."""
        ...

    def bind_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """Arguments by parameter."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A run that is ready to go: its state, its coroutine, and whether the caller waits."""

    state: ProgramState
    run: Run
    coroutine: Coroutine[Any, Any, Any]
    stream: bool


def split(
    program: Startable, kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], bool]:
    """Keyword arguments as (the program's, sampling, settings, stream).

    A parameter of the program wins over a setting of the same name.
    """
    own, sampling, settings, stream = {}, {}, {}, False
    takes_any = any(
        p.kind is inspect.Parameter.VAR_KEYWORD
        for p in inspect.signature(program.function).parameters.values()
    )
    for name, value in kwargs.items():
        if name in program.parameters:
            own[name] = value
        elif name in SETTINGS:
            settings[name] = value
        elif name in RUN_OPTIONS:
            sampling[name] = value
        elif name == "stream":
            stream = bool(value)
        elif name not in _IGNORED:
            if not takes_any:
                raise CompileError(
                    f"{program.name}() has no argument {name!r}",
                    hint=f"its parameters: {', '.join(program.parameters) or 'none'}; "
                    f"settings: {', '.join(sorted(SETTINGS))}, stream, and sampling arguments",
                )
            own[name] = value
    return own, sampling, settings, stream


def _check(settings: Mapping[str, Any]) -> None:
    """Raises `CompileError` for a setting of a run that is not what it must be."""
    for name, value in settings.items():
        wanted = _WANTED.get(name)
        if wanted is None or value is None:
            continue
        kinds, said = wanted
        if kinds is None:  # any object that acts as one, stand-ins included
            fits = not isinstance(value, str | bytes | int | float | Mapping | Sequence | type)
        else:
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            fits = fits and not (isinstance(value, float) and math.isnan(value))
        if not fits:
            # Its class alone: an address may hold a password.
            raise CompileError(
                f"{name}= takes {said}, not {type(value).__name__}", hint=f"correct {name}="
            )


_WANTED: dict[str, tuple[Any, str]] = {
    "backend": (None, "an engine, such as RuntimeEndpoint(url)"),
    "retriever": (None, "a retriever"),
    "deadline": ((int, float), "a number of seconds"),
    "token_budget": (int, "a whole number of tokens"),
    "seed": (int, "a whole number"),
    "priority": (int, "a whole number"),
    "namespace": (str, "a text"),
    "step_cache": (MutableMapping, "a mapping, such as {}"),
}


def prepare(
    program: Startable,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    record: Record | None = None,
) -> Started:
    """Everything checked and ready. `record` is one to answer from, and to go on writing.

    Raises `CompileError` for bad arguments or settings.
    """
    own, sampling, settings, stream = split(program, kwargs)
    _check(settings)
    bound = program.bind_arguments(args, own)
    compiled = program.compiled
    shown = {name: bound.arguments[name] for name in program.parameters}
    if settings.pop("record", False) and record is None:
        record = Record(program=program.name, program_hash=program.identity())
        record.args = {name: encode(value) for name, value in shown.items()}
    options = clean({**(record.sampling if record else {}), **sampling})
    if record is not None:
        record.sampling = dict(options)
    samples = options.pop("n", 1)
    run = Run(
        program.name, shown, Settings(sampling=options, samples=samples, record=record, **settings)
    )
    state = ProgramState(Branch(run))
    frame = _frame(program, run, state, bound)
    arguments = list(bound.arguments.values())
    body = lambda: _outcome(execute(compiled, frame, arguments))  # noqa: E731
    return Started(state, run, drive_run(run, body, compiled.constraints), stream)


def _outcome(value: Any) -> Any:
    """What a whole program returns. Raises `CompileError` for steps that were never done."""
    if isinstance(value, Expression):
        raise CompileError(
            "the program returns steps that are not done, since no state was given them",
            hint="append them and return the variable: s += gen(name, ...), return s[name]",
        )
    return value


def failed(program: Startable, args: Mapping[str, Any], error: BaseException) -> ProgramState:
    """The state of a run that could not even start."""
    run = Run(program.name, args, Settings())
    run.error = error
    run.feed.close()
    return ProgramState(Branch(run))


def restored(program: Startable, args: Mapping[str, Any], row: Mapping[str, Any]) -> ProgramState:
    """The state of a run that finished in another process, from what was kept of it."""
    run = Run(program.name, args, Settings())
    run.value = row["value"]
    run.spend(Usage(**row["usage"]))
    if row["text"]:  # nothing of how it came was kept: readers get it in one piece
        run.emit(Appended, Site(program.name), "", text=row["text"])
    run.feed.close()
    branch = Branch(run)
    branch.transcript.pieces.append(row["text"])
    branch.transcript.closed.extend(row["messages"])
    branch.variables.update(row["variables"])
    branch.meta.update(row["meta"])
    return ProgramState(branch)


def _frame(
    program: Startable, run: Run, state: Handle, bound: inspect.BoundArguments, depth: int = 0
) -> Frame:
    if program.state_parameter is not None:
        bound.arguments[program.state_parameter] = state
    return Frame(
        run=run,
        branch=state._branch,
        program=program.name,
        style="value" if program.state_parameter is None else "state",
        args={name: bound.arguments[name] for name in program.parameters},
        bound=bound,
        templates=program.templates if program.state_parameter is None else None,
        file=written(program.function).co_filename,
        depth=depth,
    )


def nested_shared(
    program: Startable, state: Handle | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run a program inside another on the same state, and return its value."""
    outer = current()
    assert outer is not None
    handle = state if state is not None else ProgramState(outer.branch)
    return _nested(program, outer, handle, args, kwargs)


def nested_fresh(
    program: Startable,
    outer: Frame,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    branch: Branch | None = None,
) -> ProgramState:
    """Run a program inside another on a session of its own, and return its state."""
    own, sampling, settings, _ = split(program, kwargs)
    if "n" in sampling:
        settings["n"] = sampling.pop("n")
    if settings:
        raise CompileError(
            f"{next(iter(settings))}= can't be set for a program inside another",
            hint="set it on the outer run",
        )
    state = ProgramState(branch if branch is not None else outer.branch.fresh())
    state._branch.sampling = {**outer.run.settings.sampling, **clean(sampling)}
    state._value = _nested(program, outer, state, args, own)
    return state


def _nested(
    program: Startable,
    outer: Frame,
    state: Handle,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    if outer.depth >= MAX_DEPTH:
        raise ProgramError(
            f"programs call each other more than {MAX_DEPTH} deep",
            hint="end the recursion by an argument, or write a loop",
        )
    bound = program.bind_arguments(args, kwargs)
    frame = _frame(program, outer.run, state, bound, outer.depth + 1)
    return execute(program.compiled, frame, list(bound.arguments.values()))


async def pin_prefix(program: Startable, backend: Backend, namespace: str = "") -> int:
    """Prefill the program's constant prefix and keep it. Returns its tokens (0: there is none)."""
    segments: list[Segment] = []
    for what, value in program.compiled.graph.constant_prefix():
        if what == "text":
            segments.append(Text(value))
        else:
            chat = backend.chat
            parts = chat.prefix if what == "begin" else chat.suffix
            if not segments and what == "begin":
                segments += chat.begin
                if value != "system" and chat.default_system is not None:
                    default = Text(chat.default_system, heal=False)
                    segments += [*chat.prefix["system"], default, *chat.suffix["system"]]
            segments += parts[value]
    known = any(isinstance(s, Special) or s.text for s in segments)
    return await backend.prefill(segments, namespace=namespace) if known else 0


def check(program: Startable) -> list[Finding]:
    """The graph's findings, and those that need the program: unknown templates."""
    graph = program.compiled.graph
    found = graph.check()
    if program.state_parameter is None:
        for node in graph.nodes.values():
            if isinstance(node, Gen | Select) and node.name and node.name not in program.templates:
                names = ", ".join(program.templates.names()) or "none"
                found.append(
                    Finding(
                        "P008",
                        "error",
                        f"there is no prompt template {node.name!r}",
                        f"known: {names}",
                        node.file,
                        node.line,
                        node.id,
                    )
                )
    return found
