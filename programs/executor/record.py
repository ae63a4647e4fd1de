"""The record of a run: its effects in order, plain JSON, enough to run it again.

What lives here: `Record` and the matching of a replayed effect against it. What does not:
where records are stored (the server's journal) or how effects are done (`perform.py`).

Only what a program cannot compute itself is recorded: step results, hits, tool results, the
seed, the model's chat format, and text that a person put in place of the program's (`rewind.py`).
An entry's address is (path, seq): the branch and the count of effects on it. The idea is
Temporal's: on resume the program's code runs again from its start, recorded results are handed
back, and whatever it asks for must match what it asked then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from phloem.errors import JournalError, NonDeterminism
from phloem.programs.executor.failures import error_from_json, error_to_json, is_failure
from phloem.programs.executor.outcome import segments_from_json, segments_to_json
from phloem.programs.protocol import Segment

__all__ = [
    "Address",
    "Entry",
    "Mode",
    "Record",
    "RecordedFailure",
    "SessionState",
    "depth",
    "digest",
    "text_path",
]

Address = tuple[str, int]
Mode = Literal["write", "resume", "replay", "follow"]
FORMAT = 1


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session after a step: `keep` token ids as after the step before on the same branch, then
    `tokens`, then text that is not tokenised yet; and the key of its sampling noise."""

    keep: int
    tokens: tuple[int, ...]
    pending: tuple[Segment, ...]
    branch: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "keep": self.keep,
            "tokens": list(self.tokens),
            "pending": segments_to_json(self.pending),
            "branch": self.branch,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionState:
        """The inverse of `to_json`."""
        pending = segments_from_json(data["pending"])
        return cls(data["keep"], tuple(data["tokens"]), pending, data["branch"])


@dataclass(frozen=True, slots=True)
class Entry:
    """One effect: what was asked (`kind`, `name`, `request`) and its `outcome` as JSON.

    `request` is a digest of everything the outcome depends on. `node` and `line` are for
    people. `session` is the session as it was after the step, if the engine could tell.
    """

    kind: str
    name: str | None
    request: str
    outcome: Any
    node: str | None = None
    line: int | None = None
    session: SessionState | None = None
    order: int = 0
    """How many effects the run had recorded before this one, on all branches."""
    texts: tuple[int, ...] | None = None
    """How many texts its branch had put in before it, after the same of each branch that it was
    split from, up to the split. None: not known (an old record)."""


class RecordedFailure(Exception):
    """An effect failed when it was recorded: `error` is to be raised, after `text`."""

    def __init__(self, error: Exception, text: str) -> None:
        super().__init__(error)
        self.error = error
        self.text = text


def depth(path: str) -> int:
    """How many branches a branch was split from."""
    return path.count(".") + 1 if path else 0


def text_path(path: str, number: int) -> str:
    """Where a record keeps the text that stands instead of a branch's text with this number."""
    return f"{path}+{number}"


def digest(*parts: Any) -> str:
    """A short stable hash of JSON-like values (others by their `repr`)."""
    text = json.dumps(parts, sort_keys=True, default=repr, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Record:
    """Effects of one run by path; while `mode` is not "write" they are handed back first.

    "write" only adds. "resume" hands back what is there, then adds. "replay" hands back and
    refuses to go past the end. "follow" is "resume" for a program that was changed: at the first
    difference on a branch the rest of its entries is dropped instead of refused.
    """

    program: str = ""
    program_hash: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The run's sampling arguments, "n" among them: part of what every step was asked."""
    fingerprint: str = ""
    chat: Any = None
    drawn_seed: int | None = None
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    mode: Mode = "write"
    _next: dict[str, int] = field(default_factory=dict, repr=False)
    _asked: dict[str, tuple[str, str | None, str]] = field(default_factory=dict, repr=False)
    _failed: dict[str, Entry] = field(default_factory=dict, repr=False)
    _texts: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def seed(self, given: int | None, draw: Callable[[], int]) -> int:
        """The run's random key: the recorded one, else `given`, else drawn and recorded."""
        if self.drawn_seed is None:
            self.drawn_seed = draw() if given is None else given
        return self.drawn_seed

    def belongs_to(self, fingerprint: str) -> None:
        """Note the model that the run uses. Raises `NonDeterminism` if the record is of another."""
        if self.fingerprint not in {"", fingerprint}:
            raise NonDeterminism(
                "the record was made with another model or tokenizer",
                hint="resume it on an engine with the model it was made with",
                recorded=self.fingerprint,
                now=fingerprint,
            )
        self.fingerprint = fingerprint

    # --- texts

    def split(self, child: str, parent: str) -> None:
        """The branch `child` goes on with all that `parent` has put in so far."""
        self._texts[child] = (*self._put_in(parent), 0)

    def put(self, path: str, text: str) -> tuple[int, str]:
        """`text` is put in on a branch: its number there, and the text that a rewind put in its
        place, or itself."""
        *before, number = self._put_in(path)
        self._texts[path] = (*before, number + 1)
        instead = self.entries.get(text_path(path, number))
        return number, instead[0].outcome if instead else text

    def _put_in(self, path: str) -> tuple[int, ...]:
        branch = path.partition("~")[0]
        return self._texts.get(branch, (0,) * (depth(branch) + 1))

    # --- effects

    def replaying(self, path: str) -> bool:
        """Whether the next effect on `path` is answered from the record."""
        if self.mode == "write":
            return False
        return self._next.get(path, 0) < len(self.entries.get(path, ()))

    def take(self, path: str, kind: str, name: str | None, request: str) -> Entry | None:
        """The recorded entry for the next effect on `path`, or None past the end.

        Raises `NonDeterminism` if the program asks for something else than it did, or, in
        mode "replay", for more than it did; and `RecordedFailure`, if the effect failed.
        """
        self.settle_failure(path)
        self._asked[path] = (kind, name, request)
        entry = self._find(path, kind, name, request)
        if entry is not None and is_failure(entry.outcome):
            raise RecordedFailure(error_from_json(entry.outcome), entry.outcome["text"])
        return entry

    def _find(self, path: str, kind: str, name: str | None, request: str) -> Entry | None:
        position = self._next.get(path, 0)
        known = self.entries.get(path, [])
        if self.mode == "write" or position >= len(known):
            if self.mode == "replay":
                raise NonDeterminism(
                    f"the record of branch {path!r} ends after {position} effects, and the "
                    f"program asks for a {kind} {name!r}",
                    hint="resume() goes on with an engine where replay() stops",
                    path=path,
                    seq=position,
                )
            return None
        entry = known[position]
        asked = {"kind": kind, "name": name, "request": request}
        for what, value in asked.items():
            if getattr(entry, what) != value:
                if self.mode == "follow":
                    del known[position:]
                    return None
                raise NonDeterminism(
                    f"effect {position} of branch {path!r} differs in its {what}: recorded "
                    f"{entry.kind} {entry.name!r} (line {entry.line}), now {kind} {name!r}",
                    hint="the program, its arguments or the code it calls changed; clock, random "
                    "numbers and outside data belong in a ph.tool",
                    path=path,
                    seq=position,
                    differs=what,
                )
        self._next[path] = position + 1
        return entry

    def failed(
        self, path: str, error: Exception, text: str, node: str | None, line: int | None
    ) -> None:
        """The effect asked for last on `path` failed, after `text` had come.

        Whether that ends the run or is handled is not known yet: it is kept once the program
        goes on (`settle_failure`).
        """
        if self.replaying(path) or path not in self._asked:
            return
        kind, name, request = self._asked[path]
        outcome = {**error_to_json(error), "text": text}
        texts = self._put_in(path)
        self._failed[path] = Entry(kind, name, request, outcome, node, line, texts=texts)

    def settle_failure(self, path: str | None = None) -> None:
        """Keep a failure that the program has handled: it asks for more on `path`, or (None)
        the run has ended well. One that ends the run is not kept, so that a resumed run tries
        again."""
        for handled in list(self._failed) if path is None else [path]:
            if handled in self._failed:
                self.add(handled, self._failed.pop(handled))

    async def begin(self, path: str, kind: str, name: str | None, *, repeatable: bool) -> None:
        """Called before a new effect that changes the outside; a journal notes it on disk.

        May raise `ToolError` if an execution that died had begun the effect already and it
        is not `repeatable`.
        """

    def add(self, path: str, entry: Entry) -> Address:
        """Keep a new effect's outcome; returns its address."""
        known = self.entries.setdefault(path, [])
        texts = self._put_in(path) if entry.texts is None else entry.texts
        order = sum(map(len, self.entries.values()))
        known.append(replace(entry, order=order, texts=texts))
        self._next[path] = len(known)
        self._asked.pop(path, None)
        return (path, len(known) - 1)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "format": FORMAT,
            "program": self.program,
            "program_hash": self.program_hash,
            "args": self.args,
            "sampling": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.sampling.items()
            },
            "fingerprint": self.fingerprint,
            "chat": self.chat,
            "seed": self.drawn_seed,
            "entries": {
                path: [
                    {
                        **{name: getattr(entry, name) for name in Entry.__slots__},
                        "session": entry.session and entry.session.to_json(),
                    }
                    for entry in entries
                ]
                for path, entries in self.entries.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """The inverse of `to_json`. Raises `JournalError` for another format, or none."""
        if not isinstance(data, Mapping):
            raise JournalError(
                f"a record is a mapping, not {type(data).__name__}",
                hint="give state.record() of a run with record=True, or what json.load made of it",
            )
        if data.get("format") != FORMAT:
            raise JournalError(
                f"this record has format {data.get('format')!r}, not {FORMAT}",
                hint="it was written by another version of phloem",
            )
        try:
            return cls(
                program=data["program"],
                program_hash=data["program_hash"],
                args=data["args"],
                sampling=data["sampling"],
                fingerprint=data["fingerprint"],
                chat=data["chat"],
                drawn_seed=data["seed"],
                entries={
                    path: [_entry(item) for item in entries]
                    for path, entries in data["entries"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(
                f"the record is damaged: {type(error).__name__}: {error}",
                hint="give it as state.record() made it",
            ) from error

    def copy(self, mode: Mode) -> Record:
        """The same record from its beginning, for another execution."""
        fresh = Record.from_json(self.to_json())
        fresh.mode = mode
        return fresh


def _entry(item: Mapping[str, Any]) -> Entry:
    fields = dict(item)
    if fields["session"] is not None:
        fields["session"] = SessionState.from_json(fields["session"])
    if fields.get("texts") is not None:
        fields["texts"] = tuple(fields["texts"])
    return Entry(**fields)
