"""The course of a text that a regular expression describes: what is forced, and where.

What lives here: `Course`, for one generation. What does not: how a pattern is
read (`pattern.py`), and requests (`session.py`).

A server takes a step for each token, forced ones too. So what is forced is put into the prompt, and
the server is asked for the rest of the pattern only: at the beginning, and again after each run of
literals that is long enough to be worth a request. It stops by itself at the first character of the
run (a stop text), which can't come before; the tokens allowed up to there are those of the whole
pattern. Which tokens are forced is the grammar's and the tokenizer's word, as in the embedded
engine. Where nothing can follow the text is over: the server's step for its end is saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from phloem.grammar.spec import Constraint, Matcher
from phloem.runtime.sglang.pattern import Part, may_hold, most_bytes, parts_of

__all__ = ["Course", "Tokens"]

_KEPT = 4096


class Tokens:
    """The bytes of each token of a vocabulary, and what is asked of all of them."""

    def __init__(self, spelled: Sequence[bytes]) -> None:
        self._spelled = spelled
        self._longest = max(map(len, spelled))
        self._beyond: dict[bytes, bool] = {}

    def spell(self, tokens: Sequence[int]) -> bytes:
        """What the tokens say."""
        return b"".join(self._spelled[token] for token in tokens)

    def beyond(self, data: bytes) -> bool:
        """Whether a token holds `data` and more after it."""
        if len(data) >= self._longest:
            return False
        if data not in self._beyond:
            if len(self._beyond) >= _KEPT:
                self._beyond.clear()
            holding = (token for token in self._spelled if data in token)
            self._beyond[data] = any(token.find(data) + len(data) < len(token) for token in holding)
        return self._beyond[data]


class Course:
    """Begins with nothing generated. `rest` is the constraint on what comes next, None if nothing
    does; `stop` is where the server is to stop for what is forced then; `longest` bounds the tokens
    of the rest, where they are bounded and no stop is set.

    `matcher` is one of the whole `constraint` at its beginning. `pays` says whether a request is
    worth it for the sake of a forced text (None: the server is not to stop at all).
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: Matcher,
        tokens: Tokens,
        *,
        pays: Callable[[str], bool] | None,
    ) -> None:
        self.rest: Constraint | None = constraint
        self.stop: str | None = None
        self.longest: int | None = None
        self._constraint = constraint
        self._matcher = matcher
        self._tokens = tokens
        self._pays = pays
        cuts = constraint.kind == "regex" and constraint.after is None
        self._parts = parts_of(constraint.source) if cuts else ()
        self._at = 0
        """The part at which `rest` begins; with a `stop`, the one at which it stops."""

    @property
    def begun(self) -> bool:
        """Whether something was put in, so that `rest` is not the whole constraint."""
        return self.rest is not self._constraint

    def begin(self, limit: int) -> list[int]:
        """The tokens of the beginning, at most `limit`; `rest` is not None after them."""
        if not self._parts:
            return []
        return self._land(b"", self._matcher.forced()[:limit], leave=1)

    def go_on(self, tokens: Sequence[int], limit: int) -> list[int]:
        """The server has said `tokens` and stopped; the tokens that follow, at most `limit`.

        `rest` is None where nothing follows these, and where the server did not keep the pattern.
        """
        stop, self.rest = self.stop, None
        if stop is None or not self._accept(tokens):
            return []
        said = self._tokens.spell(tokens)
        _, found, after = said.partition(stop.encode())
        return self._land(found + after, self._matcher.forced()[:limit])

    def _accept(self, tokens: Sequence[int]) -> bool:
        if self._matcher.accepts_prefix(tokens) < len(tokens):
            return False
        for token in tokens:
            self._matcher.accept(token)
        return True

    def _land(self, said: bytes, forced: Sequence[int], leave: int = 0) -> list[int]:
        """As many of the `forced` tokens as end inside the literals here, of which `said` was said;
        the pattern goes on behind them. `leave` parts at its end stay."""
        run = self._literals(self._at)[: len(self._parts) - self._at - leave]
        for count in range(len(forced), -1, -1):
            written = said + self._tokens.spell(forced[:count])
            size = len(written.decode(errors="ignore"))
            if run[:size].encode() == written:
                self._accept(forced[:count])
                self._at += size
                self._plan()
                return list(forced[:count])
        return []

    def _plan(self) -> None:
        """What to ask for from here on."""
        self.rest = self.stop = self.longest = None
        if self._at == len(self._parts):
            return
        source = self._constraint.source[self._parts[self._at].start :]
        self.rest = replace(self._constraint, source=source) if self._at else self._constraint
        found = self._next_stop()
        if found is not None:
            self._at = found
            self.stop = self._parts[found].char
        elif self._pays is not None:
            self.longest = most_bytes(source)

    def _next_stop(self) -> int | None:
        """Where the next literals begin at which the server is to stop."""
        if self._pays is None:
            return None
        at = self._at + len(self._literals(self._at))
        while at < len(self._parts):
            run = self._literals(at)
            # At its end a pattern needs no other request.
            wanted = at + len(run) == len(self._parts) or self._pays(run)
            if run and wanted and self._can_stop(run, self._parts[self._at : at]):
                return at
            at += max(1, len(run))
        return None

    def _can_stop(self, run: str, before: Sequence[Part]) -> bool:
        """Whether its first character can't come before it, and no token goes beyond it."""
        source = self._constraint.source
        if any(may_hold(source[part.start : part.end], run[0]) for part in before):
            return False
        return run.isascii() and not self._tokens.beyond(run.encode())

    def _literals(self, start: int) -> str:
        """The literal text from a part on."""
        parts = itertools.takewhile(lambda part: part.char is not None, self._parts[start:])
        return "".join(part.char or "" for part in parts)
