"""Conjunctions of (negated) schemas -> alternatives of plain facets.

What lives here: the logic. `Flattener.expand` takes a state, a conjunction of subschemas each of
which must hold or must not, and returns flats whose union is exactly the state's set of values.
In-place applicators are resolved on the way, each by an identity of sets:

    allOf       all hold                    not         the inner one does not hold
    anyOf       one of the branches holds   oneOf       branch i holds, and no other does
    if          (if and then) or (not if and else)
    dependencies / dependentSchemas         the name is absent, or the needed holds

and a negated schema is the union, over its keywords, of the values that break one of them (De
Morgan). In `oneOf` the "and no other does" is left out for branches that exclude each other,
which is exact and keeps the usual unions as small as their `anyOf`.

What does not live here: what members and items may hold (build.py follows the ops in the flats).
A negation that would need "some member" or "two equal items" is recorded as a blocker: it
matters only if the alternative is not empty anyway.

Where several choices would multiply beyond a limit, options marked `weak` (goals.py) are left
out: the result is then a subset, never more than the schema allows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from phloem.errors import ConstraintError
from phloem.grammar.schema.document import Document
from phloem.grammar.schema.flat import Flat, State
from phloem.grammar.schema.goals import Choice, Context, Goal, Pending, Presence, Step, weak
from phloem.grammar.schema.keywords import NEGATIVE, POSITIVE, refuse_unknown

__all__ = ["Flattener"]

_MAX_FLATS = 600


class Flattener:
    """Expands states of one document. `deadline` is a `time.monotonic()` moment."""

    def __init__(self, document: Document, deadline: float) -> None:
        self.document = document
        self._deadline = deadline
        self._expanded: dict[State, list[Flat]] = {}
        self.disjoint: Callable[[int, int, int], bool] = lambda *_: False
        """Whether no value satisfies all three; set by the builder, may say no too often."""

    def expand(self, state: State) -> list[Flat]:
        """The alternatives of `state`; none if no value can satisfy it."""
        if state not in self._expanded:
            goals: list[Step] = [Goal(op, (index,), (op[1],)) for index, op in enumerate(state)]
            found: list[Flat] = []
            self._run(Flat(), goals, [], found)
            self._expanded[state] = found
        return self._expanded[state]

    def _run(self, flat: Flat, steps: list[Step], choices: list[Choice], out: list[Flat]) -> None:
        self.check_time()
        while steps:
            step = steps.pop()
            if isinstance(step, Goal):
                if not self._goal(step, steps, choices):
                    return
            elif isinstance(step, Pending):
                choices.extend(step.choices)
            else:
                step(flat)
        if not flat.settle():
            return
        choices = [self._spread(choice) for choice in choices]
        choices = [_open(choice, flat) for choice in choices if not _settled(choice, flat)]
        if not choices:
            out.append(flat)
            if len(out) > _MAX_FLATS:
                raise ConstraintError(
                    f"the schema's combinations give more than {_MAX_FLATS} alternatives",
                    hint="give the branches of oneOf/anyOf a property with distinct const values",
                )
            return
        if math.prod(map(len, choices)) > _MAX_FLATS:
            choices = [_narrowed(choice) for choice in choices]
        first = min(range(len(choices)), key=lambda index: len(choices[index]))
        others = choices[:first] + choices[first + 1 :]
        for option in choices[first]:
            self._run(flat.copy(), list(option), list(others), out)

    def _spread(self, choice: Choice) -> Choice:
        """The choice with its goals worked out, and choices inside its options made its own."""
        result: Choice = []
        for option in choice:
            steps, done, inner = list(option), list[Step](), list[Choice]()
            alive = True
            while steps and alive:
                step = steps.pop()
                if isinstance(step, Goal):
                    alive = self._goal(step, steps, inner)
                else:
                    done.append(step)
            if not alive:
                continue
            if len(inner) == 1:
                result.extend([*done, *option] for option in self._spread(inner[0]))
            else:
                result.append([*done, Pending(tuple(inner))] if inner else done)
        return result

    def _goal(self, goal: Goal, steps: list[Step], choices: list[Choice]) -> bool:
        """Turn one goal into steps and choices; False if it can't be met."""
        positive, number = goal.op
        sub = self.document.subs[number]
        if isinstance(sub.value, bool):
            return sub.value is positive
        schema = self.document.read(sub.value)
        context = Context(self.document, sub, schema, goal.order, goal.trail, self.disjoint)
        refuse_unknown(context)
        if positive:
            for index, keyword in enumerate(schema):
                handler = POSITIVE.get(keyword)
                if handler is not None:
                    handler(context.at(keyword, index), steps, choices)
            return True
        options: Choice = []
        for index, keyword in enumerate(schema):
            breaker = NEGATIVE.get(keyword)
            if breaker is not None:
                options.extend(breaker(context.at(keyword, index)))
        if len(options) == 1:
            steps.extend(options[0])
        elif options:
            choices.append(options)
        return bool(options)

    def check_time(self) -> None:
        """Raise `ConstraintError` once the deadline has passed."""
        if time.monotonic() > self._deadline:
            raise ConstraintError(
                "the schema takes too long to compile",
                hint="simplify its combinations (oneOf, not, dependencies)",
                timed_out=True,
            )


def _settled(choice: Choice, flat: Flat) -> bool:
    """Whether one option says nothing new: then the choice restricts nothing."""
    return any(
        all(isinstance(step, Presence) and step.held(flat) for step in option) for option in choice
    )


def _open(choice: Choice, flat: Flat) -> Choice:
    """The options that the flat does not contradict outright."""
    return [option for option in choice if not _contradicts(option, flat)]


def _contradicts(option: list[Step], flat: Flat) -> bool:
    trial = flat.copy()
    for step in option:
        if not isinstance(step, Goal | Pending):
            step(trial)
    return not trial.settle()


def _narrowed(choice: Choice) -> Choice:
    return [option for option in choice if weak not in option] or choice
