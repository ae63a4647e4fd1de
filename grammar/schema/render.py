"""A known value as the text the grammar would write for it.

What lives here: the members in the schema's order, numbers and strings in the canonical form. What
does not: a verdict. The text is right if the value is in the model; the grammar decides.
"""

from __future__ import annotations

import json
from typing import Any

from phloem.grammar.regex.nodes import And
from phloem.grammar.schema.distinct import items_at
from phloem.grammar.schema.flat import State
from phloem.grammar.schema.model import (
    Arrays,
    KeyClass,
    Kind,
    Literals,
    Model,
    Numbers,
    Objects,
    Strings,
)
from phloem.grammar.schema.strings import holds
from phloem.grammar.schema.values import exact, is_number, json_text, key_of

__all__ = ["render"]


def render(model: Model, value: Any) -> str | None:
    """The compact JSON text of `value` in the model's order; None if no kind fits it."""
    return _state(model, model.start, value)


def _state(model: Model, state: State, value: Any) -> str | None:
    for kind in model.kinds[state]:
        text = _kind(model, kind, value)
        if text is not None:
            return text
    return None


def _kind(model: Model, kind: Kind, value: Any) -> str | None:
    match kind:
        case Literals(texts):
            key = key_of(value)
            return next((text for text in texts if key_of(json.loads(text)) == key), None)
        case Numbers() if is_number(value):
            return _number(kind, value)
        case Strings() if isinstance(value, str):
            fits = kind.min_length <= len(value) <= (kind.max_length or len(value))
            fits = fits and (not kind.languages or holds(And(kind.languages), value))
            return json_text(value) if fits else None
        case Arrays() if isinstance(value, list):
            return _array(model, kind, value)
        case Objects() if isinstance(value, dict):
            return _object(model, kind, value)
    return None


def _number(kind: Numbers, value: Any) -> str | None:
    number, span = exact(value), kind.range
    whole = number.denominator == 1
    fits = (
        not (kind.whole and not whole)
        and not (kind.fractional and whole)
        and (span.low is None or number > span.low or (number == span.low and not span.low_open))
        and (
            span.high is None or number < span.high or (number == span.high and not span.high_open)
        )
        and all(number % step == 0 for step in kind.multiples)
    )
    return json_text(value) if fits else None


def _array(model: Model, kind: Arrays, value: list[Any]) -> str | None:
    if (
        not kind.min_items
        <= len(value)
        <= (len(value) if kind.max_items is None else kind.max_items)
    ):
        return None
    texts = []
    for index, item in enumerate(value):
        found = (_state(model, state, item) for state in items_at(kind, index))
        text = next((text for text in found if text is not None), None)
        if text is None:
            return None
        texts.append(text)
    return "[" + ",".join(texts) + "]"


def _object(model: Model, kind: Objects, value: dict[str, Any]) -> str | None:
    if not kind.min_members <= len(value) <= (kind.max_members or len(value)):
        return None
    texts = []
    known = {member.name for member in kind.members}
    for member in kind.members:
        if member.name in value:
            text = _state(model, member.state, value[member.name])
            if text is None:
                return None
            texts.append(f"{json_text(member.name)}:{text}")
        elif member.required:
            return None
    met = kind.needed is None
    for name, item in value.items():
        if name in known:
            continue
        hit = None if met else _first(model, (kind.needed,), name, item)
        text = _first(model, kind.others, name, item) if hit is None else hit
        if text is None:
            return None
        met = met or hit is not None
        texts.append(f"{json_text(name)}:{text}")
    return "{" + ",".join(texts) + "}" if met else None


def _first(model: Model, classes: tuple[KeyClass | None, ...], name: str, value: Any) -> str | None:
    for other in classes:
        if other is None or name in other.taken:
            continue
        if other.language is None or holds(other.language, name):
            text = _state(model, other.state, value)
            if text is not None:
                return text
    return None
