"""What the keyword handlers work with: goals still to be met, steps, choices, and the context.

What lives here: the vocabulary shared by flatten.py and the handlers. What does not: any keyword.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from phloem.errors import ConstraintError
from phloem.grammar.schema.document import Document, Sub
from phloem.grammar.schema.flat import Flat, Op, Order

__all__ = ["Choice", "Context", "Goal", "Pending", "Presence", "Step", "weak"]


_MAX_COUNT = 10**9


@dataclass(frozen=True, slots=True)
class Goal:
    """An op still to be worked into a flat. `trail`: the subschemas in place around it."""

    op: Op
    order: Order
    trail: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Presence:
    """A step: the member `name` is there, or is not."""

    name: str
    present: bool
    order: Order

    def __call__(self, flat: Flat) -> None:
        """Put it on the flat."""
        if self.present:
            flat.required.setdefault(self.name, self.order)
        else:
            flat.absent |= {self.name}

    def held(self, flat: Flat) -> bool:
        """Whether the flat says so already."""
        return self.name in (flat.required if self.present else flat.absent)


def weak(_flat: Flat) -> None:
    """A step that marks an option as dispensable: a value that breaks a schema only by the
    value of an optional member. Where there are too many combinations such options are left
    out, which narrows what can be generated and never widens it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A step: choices still to be made."""

    choices: tuple[Choice, ...]


Step = Goal | Pending | Callable[[Flat], None]
"""Something to do to a flat."""
Choice = list[list["Step"]]
"""Alternatives, each a list of steps."""


@dataclass(frozen=True, slots=True)
class Context:
    """One keyword of one subschema, as a handler sees it."""

    document: Document
    sub: Sub
    schema: dict[str, Any]
    order: Order
    trail: tuple[int, ...]
    disjoint: Callable[[int, int, int], bool]
    keyword: str = ""

    def at(self, keyword: str, index: int) -> Context:
        """The context of the schema's keyword number `index`."""
        return dataclasses.replace(self, keyword=keyword, order=(*self.order, index))

    @property
    def value(self) -> Any:
        """The keyword's value."""
        return self.schema[self.keyword]

    def number(self, schema: Any, *steps: str | int) -> int:
        """The number of a subschema found under this keyword."""
        path = ".".join([self.sub.path, self.keyword, *map(str, steps)])
        return self.document.number(schema, self.sub.base, path)

    def beside(self) -> int:
        """The number of this schema without the keyword: what surely holds beside it."""
        # Without a branch's members, what is left unevaluated would be more.
        left_out = {self.keyword, "unevaluatedProperties", "unevaluatedItems"}
        others = {name: item for name, item in self.schema.items() if name not in left_out}
        return self.document.variant(self.sub, self.keyword, others)

    def op(self, positive: bool, schema: Any, *steps: str | int) -> Op:
        """A subschema of a member or an item, to hold or not."""
        return positive, self.number(schema, *steps)

    def goal(self, positive: bool, number: int, *order: int) -> Goal:
        """A subschema that applies to the same value."""
        if number in self.trail:
            raise ConstraintError(
                f"the schema at {self.sub.path} refers to itself without any content",
                hint="let the reference stand under properties or items, not beside itself",
                path=self.sub.path,
                keyword=self.keyword,
            )
        return Goal((positive, number), (*self.order, *order), (*self.trail, number))

    def count(self) -> int:
        """The keyword's value as a count; `shapes.py` has seen that it is one."""
        if self.value > _MAX_COUNT:
            self.refuse(f"can't be enforced: no text has more than {_MAX_COUNT:,} of anything")
        return int(self.value)

    def refuse(self, why: str, hint: str | None = None) -> NoReturn:
        """Raise `ConstraintError`, naming the keyword and its JSON path."""
        raise ConstraintError(
            f"{self.keyword!r} at {self.sub.path} {why}",
            hint=hint,
            keyword=self.keyword,
            path=self.sub.path,
        )

    def blocker(self, kind: str) -> Callable[[Flat], None]:
        """A step that marks what can't be enforced on values of one kind."""
        mark = (self.keyword, self.sub.path, kind)

        def step(flat: Flat) -> None:
            flat.only(kind)
            flat.blockers += (mark,)

        return step
