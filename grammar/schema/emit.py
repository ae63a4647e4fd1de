"""The normal form -> a Lark grammar.

What lives here: one rule per state, the shapes of objects and arrays. What does not: what a
terminal matches (terminals.py).

Objects are written in the order of their members, those known only by class after them:
with `c[i]` for "what may follow once something was written and members before i are decided",

    c[i] = ("," member[i])? c[i+1]        (no "?" where it is required)
    object = "{" ( member[0] c[1] | member[1] c[2] | ... ) "}"

where the first row ends at the first required member. With bounds on the number of members the
rules carry the count so far.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.schema.counting import Place, edges, is_end
from phloem.grammar.schema.distinct import finite_items, needs_tracking
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
from phloem.grammar.schema.terminals import Terminals
from phloem.grammar.schema.values import json_text

__all__ = ["write_grammar", "write_rules"]

_MAX_COUNT_RULES = 20_000


def write_grammar(model: Model, *, whitespace: bool) -> str:
    """Lark text whose rule `start` holds the JSON texts of the model's values."""
    start, rules = write_rules(model, "", whitespace=whitespace)
    return f"start: {start}\n{rules}"


def write_rules(model: Model, prefix: str, *, whitespace: bool) -> tuple[str, str]:
    """The same as a rule's name and Lark text in which all names begin with `prefix`."""
    # A tracker compares spellings: then each string has one only.
    terminals = Terminals(prefix, whitespace=whitespace, one_spelling=needs_tracking(model))
    return _Writer(model, terminals, prefix).write()


class _Writer:
    def __init__(self, model: Model, terminals: Terminals, prefix: str) -> None:
        self._model = model
        self._prefix = prefix
        self._terminals = terminals
        self._numbers = {state: index for index, state in enumerate(model.kinds)}
        self._rules: list[str] = []
        self._shared: dict[object, str] = {}

    def write(self) -> tuple[str, str]:
        for state, kinds in self._model.kinds.items():
            self._rule(self._name(state), [self._kind(kind) for kind in kinds])
        text = "\n".join(self._rules) + "\n" + self._terminals.text()
        return self._name(self._model.start), text

    def _name(self, state: State) -> str:
        return f"{self._prefix}s{self._numbers[state]}"

    def _rule(self, name: str, options: Sequence[str]) -> str:
        self._rules.append(f"{name}: " + "\n  | ".join(options))
        return name

    def _kind(self, kind: Kind) -> str:
        """The rule or terminal of a kind; equal kinds share one."""
        if kind in self._shared:
            return self._shared[kind]
        match kind:
            case Literals(texts):
                made = self._literals(texts)
            case Strings():
                made = self._terminals.string(kind)
            case Numbers():
                made = self._terminals.number(kind)
            case Arrays():
                made = f"{self._prefix}a{len(self._shared)}"
                self._shared[kind] = made
                self._rule(made, [self._array(kind)])
            case Objects():
                made = f"{self._prefix}o{len(self._shared)}"
                self._shared[kind] = made
                self._object(made, kind)
        self._shared[kind] = made
        return made

    def _literals(self, texts: Sequence[str]) -> str:
        """Constants: scalars in one terminal, containers from the usual punctuation.

        A container as one terminal would win over an array's bracket by its length.
        """
        scalars = [text for text in texts if text[0] not in "[{"]
        options = [self._terminals.literals(scalars)] if scalars else []
        options += [self._constant(json.loads(text)) for text in texts if text[0] in "[{"]
        return (
            self._rule(f"{self._prefix}l{len(self._rules)}", options)
            if len(options) > 1
            else options[0]
        )

    def _constant(self, value: Any) -> str:
        t = self._terminals
        if isinstance(value, list):
            inner = f" {t.comma} ".join(map(self._constant, value))
            return f"{t.open_array} {inner} {t.close_array}"
        if isinstance(value, dict):
            items = (f"{t.key(name)} {self._constant(item)}" for name, item in value.items())
            return f"{t.open_object} {f' {t.comma} '.join(items)} {t.close_object}"
        return t.literals((json_text(value),))

    def _array(self, kind: Arrays) -> str:
        t = self._terminals
        values = finite_items(self._model, kind) if kind.unique else None
        if values:
            return self._unique(kind, values)
        if kind.counted is not None:
            return f"{t.open_array} {self._counting(kind)} {t.close_array}"
        inner = self._rest(kind, len(kind.prefix))
        for index in reversed(range(len(kind.prefix))):
            if kind.max_items is not None and index >= kind.max_items:
                continue
            comma = f"{t.comma} " if index else ""
            inner = f"{comma}{self._name(kind.prefix[index])} {inner}"
            if index >= kind.min_items:
                inner = f"({inner})?"
        return f"{t.open_array} {inner} {t.close_array}"

    def _rest(self, kind: Arrays, done: int) -> str:
        """The items after the first `done`, which are all there."""
        if kind.rest is None or (kind.max_items is not None and kind.max_items <= done):
            return ""
        low = max(kind.min_items - done, 0)
        high = None if kind.max_items is None else kind.max_items - done
        return self._row(self._name(kind.rest), low, high, started=done > 0)

    def _row(self, item: str, low: int, high: int | None, *, started: bool) -> str:
        """From `low` to `high` items with commas, also before the first if `started`."""
        if high == 0:
            return ""
        more = f"({self._terminals.comma} {item})"
        if started:
            return _repeat(more, low, high)
        row = f"{item} {_repeat(more, max(low - 1, 0), None if high is None else high - 1)}"
        return row if low else f"({row})?"

    def _counting(self, kind: Arrays) -> str:
        """The items where some are counted: a rule for each place of their automaton."""
        found = edges(kind)
        name, comma = f"{self._prefix}q{len(self._rules)}", self._terminals.comma
        names = {place: f"{name}x{index}" for index, place in enumerate(found)}
        for place, ways in found.items():
            lead = f"{comma} " if place[0] else ""
            by_place: dict[Place, list[str]] = {}
            for item, after in ways:
                by_place.setdefault(after, []).append(self._name(item.state))
            steps = {
                after: f"{lead}({' | '.join(dict.fromkeys(items))})"
                for after, items in by_place.items()
            }
            # What stays at its place is a loop, not a rule in a rule in a rule.
            stay = steps.pop(place, None)
            loop = f"({stay})* " if stay else ""
            options = [f"{loop}{step} {names[after]}" for after, step in steps.items()]
            if is_end(kind, place):
                options.append(loop or '""')
            self._rule(names[place], options)
        return next(iter(names.values()))

    def _unique(self, kind: Arrays, values: list[str]) -> str:
        """Distinct items of a finite set: a rule that remembers the set of those written."""
        low, high = kind.min_items, len(values)
        high = high if kind.max_items is None else min(kind.max_items, high)
        if low > high:
            raise ConstraintError("'uniqueItems' with minItems above the number of values")
        name, t = f"{self._prefix}u{len(self._rules)}", self._terminals
        bits = f"[0:{len(values)}]"
        options = [f'"" %if bit_count_ge({bits}, {low})']
        for index, text in enumerate(values):
            free = f"and(bit_clear({index}), bit_count_lt({bits}, {high}))"
            item = self._constant(json.loads(text))
            options.append(f"{t.comma} {item} {name}_::set_bit({index}) %if {free}")
        self._rule(f"{name}_::_", options)
        first = [
            f"{self._constant(json.loads(text))} {name}_::set_bit({index})"
            for index, text in enumerate(values)
        ]
        first = first if high else []
        self._rule(f"{name}::_", [*first, *([] if low else ['""'])])
        return f"{t.open_array} {name}::0x0 {t.close_array}"

    def _object(self, name: str, kind: Objects) -> None:
        t = self._terminals
        members = [
            (f"{t.key(member.name)} {self._name(member.state)}", member.required)
            for member in kind.members
        ]
        others = ""
        if kind.others:
            others = self._rule(f"{name}k", [self._other(other) for other in kind.others])
        if kind.needed is not None:
            hit = self._rule(f"{name}h", [self._other(kind.needed)])
            inner = self._ordered(name, members, others, hit)
        elif kind.min_members or kind.max_members is not None:
            inner = self._counted(name, members, others, kind)
        else:
            inner = self._ordered(name, members, others, "")
        self._rule(name, [f"{t.open_object} {inner} {t.close_object}"])

    def _other(self, kind: KeyClass) -> str:
        return f"{self._terminals.key_class(kind)} {self._name(kind.state)}"

    def _ordered(self, name: str, members: list[tuple[str, bool]], others: str, hit: str) -> str:
        """Rules for members in order, then `others`, of which one is `hit` where it is given."""
        comma = self._terminals.comma
        more = f"({comma} {others})*" if others else ""
        follow = f"{more} {comma} {hit} {more}" if hit else more
        after = [""] * (len(members) + 1)
        after[-1] = self._rule(f"{name}c{len(members)}", [follow]) if follow else ""
        for index in reversed(range(1, len(members))):
            text, required = members[index]
            item = f"{comma} {text}" if required else f"({comma} {text})?"
            after[index] = self._rule(f"{name}c{index}", [f"{item} {after[index + 1]}"])
        options = []
        for index, (text, required) in enumerate(members):
            options.append(f"{text} {after[index + 1]}")
            if required:
                return self._rule(f"{name}f", options)
        if hit:
            return self._rule(f"{name}f", [*options, f"({others} {comma})* {hit} {more}"])
        if others:
            options.append(f"{others} {follow}")
        return self._rule(f"{name}f", [*options, '""'])

    def _counted(
        self, name: str, members: list[tuple[str, bool]], others: str, kind: Objects
    ) -> str:
        """Rules `NAMEd{i}x{c}`: members from i on, with c written so far."""
        low, high = kind.min_members, kind.max_members
        top = max(low, 0 if high is None else high + 1)
        if (len(members) + 1) * (top + 1) > _MAX_COUNT_RULES:
            raise ConstraintError("the bounds on the number of members are too wide to enforce")
        live: dict[tuple[int, int], str] = {}
        for count in range(top + 1):
            ending = self._ending(others, count, low, high)
            if ending is not None:
                rule = f"{name}d{len(members)}x{count}"
                live[len(members), count] = self._rule(rule, [ending or '""'])
        for index in reversed(range(len(members))):
            text, required = members[index]
            for count in range(top + 1):
                options = []
                taken = live.get((index + 1, min(count + 1, top)))
                if taken is not None and (high is None or count + 1 <= high):
                    comma = f"{self._terminals.comma} " if count else ""
                    options.append(f"{comma}{text} {taken}")
                skipped = None if required else live.get((index + 1, count))
                if skipped is not None:
                    options.append(skipped)
                if options:
                    live[index, count] = self._rule(f"{name}d{index}x{count}", options)
        if (0, 0) not in live:
            raise ConstraintError("no object has as few or as many members as the schema asks")
        return live[0, 0]

    def _ending(self, others: str, count: int, low: int, high: int | None) -> str | None:
        """Other members after `count` named ones; None if the bounds can't be met."""
        if high is not None and count > high:
            return None
        need = max(low - count, 0)
        if not others:
            return None if need else ""
        room = None if high is None else high - count
        return self._row(others, need, room, started=count > 0)


def _repeat(text: str, low: int, high: int | None) -> str:
    """`text` from `low` to `high` times; Lark has no zero as the upper count."""
    if high == 0:
        return ""
    if (low, high) == (0, None):
        return f"{text}*"
    if low == high:
        return f"{text}{{{low}}}"
    return f"{text}{{{low},{'' if high is None else high}}}"
