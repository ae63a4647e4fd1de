"""The grammar seam: what a constraint is, and what the other rooms may ask about one.

What lives here: the frozen `Constraint` value, the `Bounds` an analyser finds, `Span`, and three
protocols: `Analyser` (used by `programs` before a run), `Compiler` and `Matcher` (used by
`runtime` token by token). What does not: any engine; those are in the rest of `grammar/`.
Nothing here imports llguidance, outlines or pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

__all__ = ["Analyser", "Bounds", "Compiler", "Constraint", "Finish", "Kind", "Matcher", "Span"]

Kind = Literal["regex", "json_schema", "choices", "lark"]
Finish = Literal["free", "force"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a step's text must be: exactly one of the texts a formal language holds.

    `kind` names the language and `source` is its canonical text: the pattern (`regex`, always
    a full match), the schema as JSON with its own key order (`json_schema`), a JSON list of
    strings (`choices`), or a Lark grammar (`lark`). Two equal constraints accept the same
    texts, so a constraint is the key of every cache.

    `after` delays the constraint until that text has been generated (a reasoning block).
    `finish="force"` makes the last tokens before `max_tokens` take the shortest way to a
    valid end; "free" leaves a cut structure cut.
    """

    kind: Kind
    source: str
    after: str | None = None
    finish: Finish = "free"
    whitespace: bool = False
    """JSON only: allow (bounded) white space between tokens; False is compact JSON."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, part of the graph's JSON."""
        return {
            "kind": self.kind,
            "source": self.source,
            "after": self.after,
            "finish": self.finish,
            "whitespace": self.whitespace,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Constraint:
        """The inverse of `to_json`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a constraint's texts; None means unknown (or unbounded, for maxima).

    Lengths are in Unicode characters and, where a tokenizer was given, in tokens.
    """

    min_chars: int | None = None
    max_chars: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    empty: bool = False
    """True if no text at all satisfies the constraint."""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` of the passage `document`, in characters; `end` is exclusive."""

    document: str
    start: int
    end: int


class Analyser(Protocol):
    """Builds constraints from what a user writes, and answers questions before any token.

    `programs` finds its implementation through the registry under the name "analyser".
    """

    def build(
        self,
        *,
        regex: str | None = None,
        schema: Any = None,
        type: Any = None,  # noqa: A002 - the public name of the argument of `gen`
        choices: Sequence[str] | None = None,
        lark: str | None = None,
        after: str | None = None,
        finish: Finish | None = None,
        whitespace: bool = False,
    ) -> Constraint:
        """The constraint for exactly one of the sources given.

        `schema` takes a JSON Schema (dict, bool or JSON text), a pydantic model, dataclass,
        TypedDict, `Literal`, `Enum`, `Union` or `Annotated`; `type` takes a Python type or an
        Outlines term. `finish=None` is the default of the kind: "force" for JSON Schema.

        Raises `ConstraintError`, naming the keyword and JSON path or the position in the
        regex, for whatever can't be enforced in full, and for more than one source.
        """
        ...

    def bounds(self, constraint: Constraint, *, budget_s: float = 0.5) -> Bounds:
        """Length bounds and emptiness, within `budget_s` seconds; "unknown" is an answer."""
        ...

    def parse(self, constraint: Constraint, text: str, target: Any = None) -> Any:
        """The value a finished `text` stands for.

        JSON text becomes the parsed value; with `target` (a type), an instance of it,
        validated by pydantic. Raises `ConstraintError` if the text does not fit.
        """
        ...

    def quote(self, passages: Sequence[tuple[str, str]]) -> Constraint:
        """The constraint that a text is a run of whole words of one of the passages.

        `passages` are pairs of document id and text. Raises `ConstraintError` if all are empty.
        """
        ...

    def locate(self, passages: Sequence[tuple[str, str]], quote: str) -> tuple[Span, ...]:
        """Every place in the passages where `quote` stands, in their order."""
        ...


class Matcher(Protocol):
    """The state of one constraint inside one generation. Not thread-safe; cheap to make.

    Tokens are ids of the tokenizer the `Compiler` was made for. Errors of the engine below
    never pass silently: every method raises `ConstraintError` once the state is broken.
    """

    def fill_mask(self, out: Any) -> bool:
        """Write the allowed tokens into `out`, an int32 array of ceil(vocab / 32) words.

        Bit `i % 32` of word `i // 32` is token i. End-of-sequence ids are allowed exactly where
        the text so far is complete. Returns False if every token is allowed (`out` untouched).
        """
        ...

    def accept(self, token: int) -> None:
        """Advance over one token, which the mask must allow."""
        ...

    def accepts_prefix(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first, could be accepted in turn. Changes nothing."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""
        ...

    def forced(self) -> list[int]:
        """Tokens that must come next because the grammar allows one text only; may be empty.

        They are the tokenizer's own encoding of that text. Does not advance the state.
        """
        ...

    def is_complete(self) -> bool:
        """Whether the text so far is a whole text of the language."""
        ...

    def is_finished(self) -> bool:
        """Whether nothing can follow: complete, and only the end is allowed."""
        ...

    def closing(self, limit: int) -> list[int] | None:
        """A shortest known run of at most `limit` tokens to a complete text, or None."""
        ...

    def copy(self) -> Matcher:
        """An independent matcher in the same state (for forks and snapshots)."""
        ...


class Compiler(Protocol):
    """Turns constraints into matchers for one tokenizer. Thread-safe; caches what it compiles."""

    def compile(self, constraint: Constraint, *, timeout: float | None = None) -> None:
        """Compile into the cache; blocks up to `timeout` seconds. Raises `ConstraintError`."""
        ...

    def matcher(self, constraint: Constraint) -> Matcher:
        """A fresh matcher at the start of the constraint. Compiles if it must."""
        ...
