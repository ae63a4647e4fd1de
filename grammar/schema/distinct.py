"""What a context-free grammar can't say: that items, or names of members, are all different.

What lives here: which kinds of a model need that, and `Tracker`, which reads the JSON text as it
is generated, byte by byte, and tells when an item or a name repeats an earlier one. What does
not: masks (checked.py), and sets of items small enough for the grammar itself (emit.py).

The tracker does not parse by the grammar: it follows the states a value may be in, all of them
at once, by names and positions. Where several kinds are possible and any of them demands
distinct items, they must be distinct. So the check may be stricter than the schema where a union
mixes both kinds of array, and is never laxer.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from phloem.grammar.schema.flat import State
from phloem.grammar.schema.model import Arrays, Kind, Literals, Model, Objects, Strings
from phloem.grammar.schema.values import key_of

__all__ = ["ENDERS", "Tracker", "finite_items", "items_at", "needs_tracking"]

_MAX_FINITE = 60
_SPACE = b" \t\n\r"
_QUOTE, _COMMA, _BRACKETS, _ANY_END = b'"', b",", b"]}", b'",]}' + _SPACE
ENDERS = (_QUOTE, _COMMA, _BRACKETS, _ANY_END)
"""What `Tracker.enders` may name."""
_FRESH = frozenset(("value", "after"))
_IN_STRING = frozenset(("string", "string escape", "key", "key escape"))


def finite_items(model: Model, kind: Arrays) -> list[str] | None:
    """The JSON texts of all possible items, if they are few; the grammar can count those off."""
    if kind.prefix or kind.counted is not None:
        return None
    texts: dict[str, None] = {}
    for item in () if kind.rest is None else model.kinds[kind.rest]:
        if not isinstance(item, Literals):
            return None
        texts.update(dict.fromkeys(item.texts))
    return list(texts) if len(texts) <= _MAX_FINITE else None


def needs_tracking(model: Model) -> bool:
    """Whether some kind of the model asks for more than its grammar can say."""
    return any(_is_tracked(model, kind) for kinds in model.kinds.values() for kind in kinds)


def _is_tracked(model: Model, kind: Kind) -> bool:
    if isinstance(kind, Arrays):
        short = kind.max_items is not None and kind.max_items <= 1
        return kind.unique and not short and finite_items(model, kind) is None
    return isinstance(kind, Objects) and bool(kind.others) and kind.min_members > 1


def _endless(model: Model, state: State, open_: frozenset[State] = frozenset()) -> bool:
    """Whether a state surely has values without end; False where that takes more to find out."""
    if state in open_:
        return False
    inner = open_ | {state}
    for kind in model.kinds[state]:
        match kind:
            case Strings(_, None, ()):
                return True
            case Arrays(_, rest, _, None, False) if rest is not None:
                return True
            case Objects(members, others, _, None):
                states = [member.state for member in members] + [other.state for other in others]
                if any(_endless(model, part, inner) for part in states):
                    return True
    return False


def items_at(kind: Arrays, place: int) -> list[State]:
    """The states of the items that may stand at `place`."""
    if kind.counted is not None:
        return [item.state for item in kind.counted.at(place)]
    if place < len(kind.prefix):
        return [kind.prefix[place]]
    return [] if kind.rest is None else [kind.rest]


class Frame(NamedTuple):
    """One open container. `start` is the offset of the current item; `seen` holds the keys of
    those before it (or the names before), `texts` how they were written. `endless`: there is
    always another item."""

    is_array: bool
    states: frozenset[State]
    distinct: bool
    endless: bool = False
    seen: frozenset[str] = frozenset()
    texts: tuple[bytes, ...] = ()
    place: int = 0
    start: int = 0
    name: str = ""


class Tracker:
    """Reads a JSON text and finds repetitions. `copy` is cheap: trials run on copies."""

    __slots__ = ("_endless", "_mode", "_model", "_stack", "_start", "_text")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._endless = frozenset(state for state in model.kinds if _endless(model, state))
        self._text = bytearray()
        self._stack: list[Frame] = []
        self._mode = "value"
        self._start = 0

    def copy(self) -> Tracker:
        """An independent tracker in the same state."""
        twin = Tracker.__new__(Tracker)
        twin._model = self._model
        twin._endless = self._endless
        twin._text = self._text[:]
        twin._stack = self._stack[:]
        twin._mode = self._mode
        twin._start = self._start
        return twin

    def feed(self, data: bytes) -> bool:
        """Read more text, which the grammar allows. False if something repeats in it."""
        return all(map(self._byte, data))

    def enders(self) -> tuple[bytes, ...]:
        """What a token must hold to end something that must not repeat: a byte of each of these.

        Empty if nothing can repeat now.
        """
        risky = [frame for frame in self._stack if frame.distinct and frame.seen]
        if not risky:
            return ()
        frame = risky[-1]
        if frame is not self._stack[-1]:
            # A bracket inside of a string closes nothing.
            return (_QUOTE, _BRACKETS) if self._mode in _IN_STRING else (_BRACKETS,)
        if frame.is_array and self._mode in {"string", "string escape"}:
            # In a tracked grammar every string has one spelling, so its beginning tells. A new
            # string may end, but what comes after its comma may repeat.
            part = self._text[frame.start :]
            again = any(text.startswith(part) for text in frame.texts)
            return (_QUOTE,) if again else (_QUOTE, _COMMA)
        # Nothing ends inside of a name, nor of a member's text, but with its quote.
        return (_QUOTE,) if self._mode in _IN_STRING else (_ANY_END,)

    def repetitions(self) -> list[bytes]:
        """What would, from here, complete a repetition of an earlier item or name.

        Where a new item or name is next, that is every earlier one. Empty if nothing that is
        being written can become a repetition any more.
        """
        return [rest for frame in self._stack for rest in self._rests(frame)]

    def may_be_stuck(self) -> bool:
        """Whether it takes a look ahead to know that not every way on is a repetition."""
        return any(
            self._rests(frame)
            for frame in self._stack
            if not (frame.endless and frame is self._stack[-1] and self._mode in _FRESH)
        )

    def _rests(self, frame: Frame) -> list[bytes]:
        begun = self._begun(frame) if frame.distinct and frame.seen else None
        if begun is None:
            return []
        part = self._text[begun:]
        return [text[len(part) :] for text in frame.texts if text.startswith(part)]

    def _begun(self, frame: Frame) -> int | None:
        """Where the item or name of a frame began that is being written; None if none is."""
        top = frame is self._stack[-1]
        if not top:
            return frame.start if frame.is_array else None
        if self._mode in {"after", "value" if frame.is_array else "name"}:
            return len(self._text)
        if frame.is_array:
            return frame.start
        return self._start if self._mode in {"key", "key escape"} else None

    def _byte(self, byte: int) -> bool:
        position = len(self._text)
        self._text.append(byte)
        char = chr(byte)
        if self._mode in _IN_STRING:
            return self._in_string(char, position)
        match self._mode:
            case "scalar":
                if char in ",]}" or byte in _SPACE:
                    return self._end_value(position) and self._between(char)
            case "value":
                return self._begin(char, position)
            case "name":
                if char == '"':
                    self._mode, self._start = "key", position
                elif char == "}":
                    return self._close(position + 1)
            case "colon":
                self._mode = "value" if char == ":" else "colon"
            case "after":
                return self._between(char)
        return True

    def _in_string(self, char: str, position: int) -> bool:
        if self._mode.endswith(" escape"):
            self._mode = self._mode.removesuffix(" escape")
        elif char == "\\":
            self._mode += " escape"
        elif char == '"':
            return self._end_key() if self._mode == "key" else self._end_value(position + 1)
        return True

    def _begin(self, char: str, position: int) -> bool:
        if char in " \t\n\r":
            return True
        if char == "]":
            return self._close(position + 1)
        states = self._states()
        if self._stack and self._stack[-1].is_array:
            self._stack[-1] = self._stack[-1]._replace(start=position)
        if char in "[{":
            is_array = char == "["
            wanted = Arrays if is_array else Objects
            kinds = [
                kind
                for state in states
                for kind in self._model.kinds[state]
                if isinstance(kind, wanted)
            ]
            distinct = any(_is_tracked(self._model, kind) for kind in kinds)
            endless = is_array and all(map(self._is_endless, kinds))
            self._stack.append(Frame(is_array, states, distinct, endless))
            self._mode = "value" if is_array else "name"
        else:
            self._mode = "string" if char == '"' else "scalar"
        return True

    def _is_endless(self, kind: Kind) -> bool:
        return isinstance(kind, Arrays) and not kind.prefix and kind.rest in self._endless

    def _states(self) -> frozenset[State]:
        """The states the value that begins here may be in."""
        if not self._stack:
            return frozenset((self._model.start,))
        frame = self._stack[-1]
        found: set[State] = set()
        for kind in (kind for state in frame.states for kind in self._model.kinds[state]):
            if isinstance(kind, Arrays) and frame.is_array:
                found.update(items_at(kind, frame.place))
            elif isinstance(kind, Objects) and not frame.is_array:
                named = [m.state for m in kind.members if m.name == frame.name]
                found.update(named or (other.state for other in kind.others))
                if kind.needed is not None:
                    found.add(kind.needed.state)
        return frozenset(found)

    def _end_key(self) -> bool:
        text = bytes(self._text[self._start :])
        name = json.loads(text)
        frame = self._stack[-1]._replace(name=name)
        fresh = name not in frame.seen or not frame.distinct
        if frame.distinct:
            frame = frame._replace(seen=frame.seen | {name}, texts=(*frame.texts, text))
        self._stack[-1] = frame
        self._mode = "colon"
        return fresh

    def _end_value(self, end: int) -> bool:
        self._mode = "after"
        if not self._stack or not self._stack[-1].is_array:
            return True
        frame = self._stack[-1]
        if not frame.distinct:
            return True
        text = bytes(self._text[frame.start : end])
        key = key_of(json.loads(text))
        self._stack[-1] = frame._replace(seen=frame.seen | {key}, texts=(*frame.texts, text))
        return key not in frame.seen

    def _between(self, char: str) -> bool:
        if char == ",":
            frame = self._stack[-1]
            self._stack[-1] = frame._replace(place=frame.place + 1)
            self._mode = "value" if frame.is_array else "name"
        elif char in "]}":
            return self._close(len(self._text))
        return True

    def _close(self, end: int) -> bool:
        self._stack.pop()
        return self._end_value(end)
