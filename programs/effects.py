"""Effects: what a program asks the runtime to do, one frozen class per primitive.

What lives here: the effect classes and `Expression`, the sequence of effects that `s += ...`
takes. What does not: doing them (`executor/perform.py`) or the functions that make them
(`api/primitives.py`). An effect made by a graph node and one made deep inside a helper are the
same object and take the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from phloem.errors import CompileError
from phloem.grammar.spec import Constraint
from phloem.surrogates import half_of_pair

__all__ = [
    "AddLater",
    "AddSpecial",
    "AddText",
    "CallTool",
    "Choose",
    "Effect",
    "Expression",
    "Generate",
    "Media",
    "RoleBegin",
    "RoleEnd",
    "ScopeBegin",
    "ScopeEnd",
    "Search",
    "to_expression",
    "well_formed",
]


@dataclass(frozen=True, slots=True)
class AddText:
    """Put ordinary text at the end of the session."""

    text: str


@dataclass(frozen=True, slots=True)
class AddLater:
    """Put text at the end of the session that is not there yet: whoever does this waits for it."""

    text: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class AddSpecial:
    """Put one special token of the model at the end of the session."""

    token: str


@dataclass(frozen=True, slots=True)
class RoleBegin:
    """Open a chat message of `role`."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """Close the open chat message, which must be of `role`."""

    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin:
    """Start collecting text into the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd:
    """Stop collecting text into the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a video for models that can see."""

    kind: Literal["image", "video"]
    source: str | bytes
    frames: int | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate at the end of the session and keep the value as variable `name`.

    `options` holds the sampling arguments given at the call, by the names of
    `protocol.SamplingParams`; whatever is absent comes from the run. With `target` (or a
    `parse` request) the variable is the parsed value, else the text. `n` samples (None: as many
    as the run says) give a list if they are several.
    `reasoning` is the pair of marks around a reasoning block to be kept apart; `quoted` are the
    passages (document id, text) that the text is copied from, for a quotation.
    """

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None
    parse: bool = False
    target: Any = None
    n: int | None = None
    reasoning: tuple[str, str] | None = None
    quoted: tuple[tuple[str, str], ...] | None = None
    timeout: float | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Choose:
    """Score `choices` at the end of the session, append the winner, keep it as `name`."""

    name: str | None
    choices: tuple[str, ...]
    method: Any = None
    temperature: float = 0.0
    timeout: float | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Search:
    """Ask the run's retriever; the hits become variable `name`. The session is untouched.

    `options` are the remaining fields of `retrieval.base.Query`. `slot` sets a search that runs
    beside others apart in the record, where it has a path of its own.
    """

    name: str | None
    query: str
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    retries: int = 0
    slot: str = ""


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a Python function with outside effects; recorded, and never repeated in a replay.

    `idempotent` says that it may be repeated where nobody knows whether it happened. `slot` sets a
    call that runs beside others apart in the record, where it has a path of its own.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    retries: int = 0
    idempotent: bool = False
    slot: str = ""


Effect: TypeAlias = (
    AddText
    | AddLater
    | AddSpecial
    | RoleBegin
    | RoleEnd
    | ScopeBegin
    | ScopeEnd
    | Media
    | Generate
    | Choose
    | Search
    | CallTool
)


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """Effects in order, as written with `+` in a program. Building one does nothing yet, so it is
    no text and no value: used as one it raises `CompileError`."""

    items: tuple[Effect, ...] = ()

    def __add__(self, other: Any) -> Expression:
        return Expression(self.items + to_expression(other).items)

    def __radd__(self, other: Any) -> Expression:
        return Expression(to_expression(other).items + self.items)

    def _no_value(self, *_: Any) -> Any:
        name = next((item.name for item in self.items if isinstance(item, Generate | Choose)), None)
        raise CompileError(
            "a step that is not done yet was used as a text or a value",
            hint=f"append it and read the variable: s += gen({name!r}, ...), then s[{name!r}]; "
            "between texts write + in place of an f-string",
        )

    __bool__ = __eq__ = __ne__ = __lt__ = __gt__ = __contains__ = __iter__ = _no_value
    __str__ = __format__ = __len__ = __getitem__ = _no_value
    __hash__ = object.__hash__


def well_formed(text: str, what: str) -> str:
    """`text` itself. Raises `CompileError` if it holds half of a surrogate pair: that is no
    character, and no tokenizer takes it."""
    half = half_of_pair(text)
    if half is not None:
        raise CompileError(
            f"{what} holds {half}, half of a surrogate pair",
            hint='clean the text where it comes from: read files with errors="replace", say',
        )
    return text


def to_expression(value: Any) -> Expression:
    """What `s += value` means: an expression, text, or a list of such.

    Raises `CompileError` for anything else: None is nearly always a helper that forgot to return,
    and a model or a set has no order in which it was meant.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Expression((AddText(well_formed(str(value), "the text")),) if value else ())
    if isinstance(value, list | tuple | Iterator):
        return Expression(tuple(item for part in value for item in to_expression(part).items))
    raise CompileError(
        f"a value of type {type(value).__name__} can't be put into a prompt",
        hint="add text or a primitive; write str(value) if you mean its text",
    )
