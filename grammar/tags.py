"""Constraints made of others: structural tags (tool calls) and unions.

What lives here: free text in which, after a trigger, a tag's content is constrained, calls as
the whole text, and the union of constraints. All are constraints of kind "lark". What does not:
the parts themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.lowering import lark_string, lower_rules, schema_model
from phloem.grammar.schema.distinct import needs_tracking
from phloem.grammar.schema.model import Kind, Literals, Numbers
from phloem.grammar.spec import Constraint

__all__ = ["Tag", "calls_or", "structural_tags", "tool_calls", "union"]

_CALL_BEGIN, _CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Tag:
    """Text from `begin` to `end` whose inside is constrained by `content`.

    It ends at the first `end` before which the text is one of the content.
    """

    begin: str
    content: Constraint
    end: str


def structural_tags(
    tags: Sequence[Tag],
    *,
    triggers: Sequence[str] | None = None,
    at_least: int = 0,
    at_most: int | None = None,
) -> Constraint:
    """Free text in which every trigger opens one of the tags that begin with it.

    `triggers` are prefixes of the tags' beginnings (by default the beginnings themselves); the
    free text holds none of them. Between `at_least` and `at_most` tags appear.

    Raises `ConstraintError` for a tag without trigger, a trigger that begins another, or a
    content that can't be part of a grammar.
    """
    if isinstance(triggers, str):
        raise ConstraintError("triggers must be a sequence of texts, not one", hint="write [...]")
    found = list(dict.fromkeys(triggers or [tag.begin for tag in tags]))
    _check_tags(tags, found)
    rules, options = [], []
    for number, trigger in enumerate(found):
        inner = []
        for index, tag in enumerate(tags):
            if not tag.begin.startswith(trigger):
                continue
            inside, text = _inside(tag, f"g{number}x{index}")
            rules.append(text)
            rest = lark_string(tag.begin[len(trigger) :]) if tag.begin != trigger else ""
            inner.append(f"{rest} {inside}")
        if inner:
            options.append(f"head{number} ({' | '.join(inner)})")
            rules.append(f"head{number}[lazy]: FREE {lark_string(trigger)}\n")
    stops = " | ".join(map(lark_string, found))
    text = (
        f"start: {_times('tag', at_least, at_most)} TAIL\ntag: {' | '.join(options)}\n"
        f"FREE: /(?s:.*)/\nTAIL: FREE & ~(FREE ({stops}) FREE)\n" + "".join(rules)
    )
    return Constraint("lark", text)


def _check_tags(tags: Sequence[Tag], triggers: Sequence[str]) -> None:
    if not tags or not all(triggers):
        raise ConstraintError("structural tags need at least one tag and no empty trigger")
    for left in triggers:
        if any(left != right and left in right for right in triggers):
            raise ConstraintError(f"the trigger {left!r} is part of another trigger")
    for tag in tags:
        if not tag.begin.startswith(tuple(triggers)):
            raise ConstraintError(
                f"the tag {tag.begin!r} begins with none of the triggers",
                hint="a trigger is the beginning of each tag that it opens",
            )


def _inside(tag: Tag, prefix: str) -> tuple[str, str]:
    """What stands behind a tag's beginning, as an expression and the rules it needs."""
    start, text = _part(tag.content, prefix)
    if not tag.end:
        return start, text
    end = lark_string(tag.end)
    if tag.content.kind != "json_schema":
        # One terminal that stops as soon as it can: as two, the content would swallow the end.
        return f"{prefix}end", f"{text}{prefix}end[lazy]: {start} {end}\n"
    model = schema_model(tag.content.source)
    if tag.end[0] in "0123456789.eE" and any(map(_holds_number, model.kinds[model.start])):
        raise ConstraintError(
            f"the end {tag.end!r} can't be told from the rest of a number",
            hint="let it begin with another character",
        )
    return f"{start} {end}", text


def _holds_number(kind: Kind) -> bool:
    numerals = "-0123456789"
    return isinstance(kind, Numbers) or (
        isinstance(kind, Literals) and any(text[0] in numerals for text in kind.texts)
    )


def _times(name: str, least: int, most: int | None) -> str:
    """The rule `name` from `least` to `most` times, as Lark text."""
    if least < 0 or (most is not None and most < max(least, 1)):
        raise ConstraintError(
            f"from {least} to {most} tags or calls can't be asked for",
            hint="give at_least of 0 or more, and at_most of 1 or more and not below it",
        )
    if (least, most) == (0, None):
        return f"{name}*"
    return f"{name}{{{least},{'' if most is None else most}}}"


def tool_calls(
    tools: Mapping[str, Any],
    *,
    begin: str = _CALL_BEGIN,
    end: str = _CALL_END,
    required: bool = False,
) -> Constraint:
    """Free text with calls `BEGIN{"name": ..., "arguments": ...}END` of the tools by name.

    `tools` maps a name to the JSON Schema of its arguments (a dict). With `required` there is
    at least one call.
    """
    return structural_tags(
        [Tag(begin, call, end) for call in _calls(tools)],
        triggers=[begin],
        at_least=int(required),
    )


def calls_or(
    tools: Mapping[str, Any],
    other: Constraint,
    *,
    begin: str = _CALL_BEGIN,
    end: str = _CALL_END,
    at_most: int | None = None,
) -> Constraint:
    """Up to `at_most` calls as in `tool_calls` with nothing around them, or a text of `other`.

    `other` should hold no text that begins with `begin`: such a text could be either.
    """
    parts = [_part(call, f"g{number}") for number, call in enumerate(_calls(tools))]
    rest, rules = _part(other, "other")
    many = _times("call", 1, at_most)
    names = " | ".join(name for name, _ in parts)
    return Constraint(
        "lark",
        f"start: {many} | {rest}\n"
        f"call: {lark_string(begin)} ({names}) {lark_string(end)}\n"
        + "".join(text for _, text in parts)
        + rules,
    )


def _call_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a call of one tool: its name first, then its arguments."""
    inner = dict(parameters)
    # An identifier of its own keeps the references inside where they point.
    inner.setdefault("$id", f"tool:/{name}")
    return {
        "type": "object",
        "properties": {"name": {"enum": [name]}, "arguments": inner},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _calls(tools: Mapping[str, Any]) -> list[Constraint]:
    if not tools:
        raise ConstraintError("there is no tool to call", hint="give at least one")
    schemas = (_call_schema(name, parameters) for name, parameters in tools.items())
    return [Constraint("json_schema", json.dumps(s, ensure_ascii=False)) for s in schemas]


def union(constraints: Sequence[Constraint]) -> Constraint:
    """The texts of any of the constraints (none of them of kind "lark").

    Where a regex or choice can begin as JSON does ("[1"), JSON that begins so is left out: of two
    terminals that fit the engine takes the longer one.
    """
    if not constraints:
        raise ConstraintError("a union needs at least one constraint")
    parts = [_part(constraint, f"g{number}") for number, constraint in enumerate(constraints)]
    start = " | ".join(name for name, _ in parts)
    return Constraint("lark", f"start: {start}\n" + "".join(text for _, text in parts))


def _part(constraint: Constraint, prefix: str) -> tuple[str, str]:
    if constraint.after is not None:
        raise ConstraintError("'after' belongs to the whole constraint, not to a part")
    if constraint.kind == "json_schema" and needs_tracking(schema_model(constraint.source)):
        raise ConstraintError(
            "distinct items (uniqueItems) or names (minProperties above 1 where names are open) "
            "can't be enforced inside tags, calls and unions",
            hint="bound the items or name the members, or let the schema be the whole constraint",
        )
    return lower_rules(constraint, prefix)
