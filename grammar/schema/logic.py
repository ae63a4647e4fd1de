"""Handlers of the in-place applicators: references and combinations of schemas.

What lives here: what each means, and what its negation means, as goals and choices. What does
not: keywords about one kind of value (scalars.py, containers.py).
"""

from __future__ import annotations

from phloem.grammar.schema.goals import Choice, Context, Step

__all__ = [
    "all_of", "any_of", "broken_all_of", "broken_any_of", "broken_if", "broken_not",
    "broken_one_of", "broken_reference", "conditional", "negation", "one_of", "reference",
]  # fmt: skip


def reference(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`$ref`, and `$recursiveRef` or `$dynamicRef` where they mean the same."""
    steps.append(context.goal(True, _target(context)))


def broken_reference(context: Context) -> Choice:
    """Not `$ref`."""
    return [[context.goal(False, _target(context))]]


def _target(context: Context) -> int:
    sub = context.sub
    return context.document.target(context.keyword, context.value, sub.base, sub.path)


def _branches(context: Context) -> list[int]:
    return [context.number(item, index) for index, item in enumerate(context.value)]


def all_of(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`allOf`: every branch holds."""
    for index, number in enumerate(_branches(context)):
        steps.append(context.goal(True, number, index))


def broken_all_of(context: Context) -> Choice:
    """Not `allOf`: some branch does not hold."""
    return [[context.goal(False, number)] for number in _branches(context)]


def any_of(context: Context, _steps: list[Step], choices: list[Choice]) -> None:
    """`anyOf`: some branch holds."""
    choices.append([[context.goal(True, number)] for number in _branches(context)])


def broken_any_of(context: Context) -> Choice:
    """Not `anyOf`: no branch holds."""
    return [[context.goal(False, number) for number in _branches(context)]]


def one_of(context: Context, _steps: list[Step], choices: list[Choice]) -> None:
    """`oneOf`: one branch holds, and of those it may overlap with none does."""
    numbers = _branches(context)
    beside = context.beside()
    choice: Choice = []
    for index, number in enumerate(numbers):
        option: list[Step] = [context.goal(True, number)]
        option += [
            context.goal(False, other)
            for place, other in enumerate(numbers)
            if place != index and not context.disjoint(beside, number, other)
        ]
        choice.append(option)
    choices.append(choice)


def broken_one_of(context: Context) -> Choice:
    """Not `oneOf`: no branch holds, or two do."""
    numbers = _branches(context)
    choice: Choice = [[context.goal(False, number) for number in numbers]]
    for index, number in enumerate(numbers):
        choice += [
            [context.goal(True, number), context.goal(True, other)]
            for other in numbers[index + 1 :]
            if not context.disjoint(context.beside(), number, other)
        ]
    return choice


def negation(context: Context, steps: list[Step], _choices: list[Choice]) -> None:
    """`not`."""
    steps.append(context.goal(False, context.number(context.value)))


def broken_not(context: Context) -> Choice:
    """Not `not`."""
    return [[context.goal(True, context.number(context.value))]]


def conditional(context: Context, _steps: list[Step], choices: list[Choice]) -> None:
    """`if` with `then` and `else`, from draft 7 on."""
    if not _has_conditional(context):
        return
    test = context.number(context.value)
    then, other = (_branch(context, name) for name in ("then", "else"))
    choices.append(
        [
            [context.goal(True, test), context.goal(True, then)],
            [context.goal(False, test), context.goal(True, other)],
        ]
    )


def broken_if(context: Context) -> Choice:
    """Not `if`/`then`/`else`: the branch that applies does not hold."""
    if not _has_conditional(context):
        return []
    test = context.number(context.value)
    then, other = (_branch(context, name) for name in ("then", "else"))
    return [
        [context.goal(True, test), context.goal(False, then)],
        [context.goal(False, test), context.goal(False, other)],
    ]


def _has_conditional(context: Context) -> bool:
    has_branch = "then" in context.schema or "else" in context.schema
    return has_branch and context.document.draft >= 7


def _branch(context: Context, name: str) -> int:
    return context.at(name, 0).number(context.schema.get(name, True))
