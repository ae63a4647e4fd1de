"""Generating one step's text: what to draw next, and what a drawn token leads to.

What lives here: `Generation`. What does not: the forward pass and the draw (the scheduler's
phases), stop texts (`output_text.py`), the grammar (`constrained.py`).
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from phloem.programs.protocol import FinishReason, SamplingParams, TokenEvent, TokenLogprob, Usage
from phloem.runtime.engine.constrained import Constrained
from phloem.runtime.engine.drafts import Drafter
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.healing import Border
from phloem.runtime.engine.job import Job
from phloem.runtime.engine.masks import everything_but, pack
from phloem.runtime.engine.messages import Deliver, Generated, Progress
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.output_text import OutputText, Piece
from phloem.runtime.engine.sampler import Draw
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.vocabulary import Vocabulary

__all__ = ["Generation"]


_UNREAD_S = 0.25
"""How often text is told that nobody reads as it comes: what a step that fails can lose of it."""

LogprobOf: TypeAlias = Callable[[int], TokenLogprob] | None
"""Looks a token's log-probability up in the row it was drawn from; None: not asked for."""


@dataclass(frozen=True, slots=True)
class _Token:
    id: int
    forced: bool
    logprob: TokenLogprob | None


class Generation(Job):
    """One `Session.generate`, as the scheduler sees it.

    `border` (the prompt's last token is taken back) needs a prompt of two tokens or more.
    `jump` lets dictated tokens enter the decoder as one chunk. `drafts` lets guesses of the next
    tokens be checked in the same pass as the last one.
    """

    kind = "generate"

    def __init__(
        self,
        seq: Sequence,
        deliver: Deliver,
        *,
        params: SamplingParams,
        vocabulary: Vocabulary,
        noise: Noise,
        text: OutputText,
        constrained: Constrained | None = None,
        border: Border | None = None,
        jump: bool = True,
        drafts: bool = False,
        deadline: float | None = None,
        priority: int = 0,
        interest: Interest | None = None,
    ) -> None:
        super().__init__(seq, deliver, deadline=deadline, priority=priority, interest=interest)
        self.params = params
        self.constrained = constrained
        self.border = border
        self.finish: FinishReason | None = None
        """Why no further token is to come, once that is so."""
        self.observed = 0
        """Generated tokens whose times are counted."""
        self._vocabulary = vocabulary
        self._noise = noise
        self._text = text
        # With log-probabilities every token needs a row of logits of its own.
        self._jump = jump and params.logprobs is None
        self._tokens: list[_Token] = []
        self._counts: Counter[int] = Counter()
        self._seen = frozenset(seq.tokens) if params.repetition_penalty != 1.0 else frozenset()
        self._drafter = Drafter() if drafts else None
        self._guessed_from = 0
        self._generated = self._forced = self._drafted = self._accepted = 0
        self._told = self.clock.arrived
        if params.max_tokens == 0:
            self.finish = "length"
        elif border is None and self._jump:
            self._take_dictated()
        self._aim()
        self._reusable = self.reusable

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return self._generated

    def requested(self) -> int:
        """The step's `max_tokens`."""
        return self.params.max_tokens

    def rows(self, seq: Sequence, limit: int) -> int:
        """As for any job, but the rows whose logits are wanted stay together."""
        rows = min(seq.pending, limit)
        if rows < seq.pending and seq.computed + rows > seq.logits_from:
            rows = max(0, seq.logits_from - seq.computed)
        return rows

    @property
    def prompt_ready(self) -> bool:
        """Whether the whole prompt is computed and its border decided."""
        return self.border is None and self.seq.computed >= self.base

    @property
    def complete(self) -> bool:
        """Whether the text is at its end and the prompt computed (the next step needs it)."""
        return self.finish is not None and not self.prefilling

    # What to guess

    def guess(self, limit: int, streams: int) -> None:
        """Give the sequence up to `limit` guesses of what follows its tokens, or none.

        They are such that the constraint allows them all.
        """
        self.seq.guess([])
        if self._drafter is None or self.prefilling or self.finish or self.border:
            return
        constrained = self.constrained
        if constrained is not None and (constrained.closing or self._dictated() is not None):
            return
        left = self.params.max_tokens - self._generated - 1
        guess = self._drafter.propose(self.seq.tokens, min(limit, left), streams)
        ends = self._vocabulary.eos_ids.union(self.params.stop_token_ids)
        length = next((i for i, token in enumerate(guess) if token in ends), len(guess))
        if constrained is not None and length:
            length = constrained.matcher.accepts_prefix(guess[:length])
        self.seq.guess(guess[:length])
        self._guessed_from = len(self._tokens)

    def confirm(self) -> bool:
        """After a draw: whether the token that is last now was computed as a guess.

        Its row then gives the next draw. Otherwise the guesses are done with.
        """
        seq = self.seq
        stood = seq.confirm()
        if not seq.pending and self.finish is None:
            return True
        assert self._drafter is not None
        self._drafter.learn(len(seq.draft), stood)
        self._drafted += len(seq.draft)
        standing = self._tokens[self._guessed_from :][:stood]
        self._accepted += sum(not token.forced for token in standing)
        seq.guess([])
        return False

    # What to draw

    def border_draw(self) -> Draw:
        """The draw that decides the border, from the logits of the row before the last."""
        border, constrained = self.border, self.constrained
        assert border is not None
        allowed = self._vocabulary.table.allowed(
            border,
            self._vocabulary.size,
            constrained.allowed() if constrained else None,
            constrained.matcher if constrained else None,
        )
        position = len(self.seq.tokens) - 1
        return Draw(self.params, self._noise.uniform(position), allowed, seen=self._seen)

    def draw(self) -> Draw:
        """The draw of the next token, from the logits of the last row.

        Sets `finish` where a constraint leaves nothing to draw.
        """
        uniform = self._noise.uniform(len(self.seq.tokens))
        dictated = self._dictated()
        if dictated is not None:
            only = np.zeros(self._vocabulary.size, dtype=np.bool_)
            only[dictated] = True
            return Draw(self.params, uniform, pack(only))
        allowed = self.constrained.allowed() if self.constrained else None
        unbarred = self._unbarred()
        if allowed is None:
            allowed = unbarred
        else:
            if unbarred is not None:
                allowed &= unbarred
            if not allowed.any():
                self.finish = "stop"
        return Draw(self.params, uniform, allowed, self._counts, self._seen)

    def _dictated(self) -> int | None:
        return self.constrained.dictated() if self.constrained is not None else None

    def _unbarred(self) -> np.ndarray | None:
        """The mask of the tokens that the parameters allow now; None: all of them."""
        banned: frozenset[int] = frozenset()
        if self.params.ignore_eos:
            banned |= self._vocabulary.eos_ids
        if self._generated < self.params.min_tokens:
            banned |= self._vocabulary.eos_ids.union(self.params.stop_token_ids)
        return everything_but(banned, self._vocabulary.width) if banned else None

    # What a drawn token leads to

    def settle_border(self, token: int, logprob: LogprobOf) -> None:
        """Put the token drawn at the border in its place.

        If the original one stays, its own row of logits holds for the next draw.
        """
        border, seq = self.border, self.seq
        assert border is not None
        self.border = None
        if token != border.token and self._accept(self._vocabulary.table.rest(border, token)):
            seq.tokens.pop()
            seq.computed = len(seq.tokens)
            self.base = len(seq.tokens)
            self._text.skip(len(border.text))
            self._push(token, False, logprob)
        self._go_on()

    def take(self, token: int, logprob: LogprobOf) -> None:
        """Go on after `token` was drawn from the last row."""
        if self._dictated() is not None:
            self._take_one_dictated(logprob)
        elif token in self._vocabulary.eos_ids or token in self.params.stop_token_ids:
            self.finish = "stop"
        elif self._accept([token]):
            self._push(token, False, logprob)
        elif self._dictated() is not None:  # the way out begins here
            self._take_one_dictated(logprob)
        self._go_on()

    def _accept(self, says: list[int]) -> bool:
        """Whether the constraint takes what a sampled token says."""
        left = self.params.max_tokens - self._generated
        return self.constrained is None or self.constrained.take(says, left)

    def _go_on(self) -> None:
        self._check_end()
        if self._jump:
            self._take_dictated()
        self._aim()

    def _aim(self) -> None:
        """Ask for the logits the next draw needs."""
        last = len(self.seq.tokens) - 1
        if self.finish is not None:
            last += 1
        elif self.border is not None:
            last -= 1
        self.seq.logits_from = last

    def _take_dictated(self) -> None:
        """Take all that the grammar dictates."""
        while self.finish is None and self._dictated() is not None:
            self._take_one_dictated(None)
            self._check_end()

    def _take_one_dictated(self, logprob: LogprobOf) -> None:
        assert self.constrained is not None
        token = self.constrained.take_dictated()
        if token in self.params.stop_token_ids and self._generated >= self.params.min_tokens:
            self.finish = "stop"
        else:
            self._push(token, True, logprob)

    def _push(self, token: int, forced: bool, logprob: LogprobOf) -> None:
        self.seq.tokens.append(token)
        self._generated += 1
        self._forced += forced
        self._counts[token] += 1
        self._tokens.append(_Token(token, forced, logprob(token) if logprob else None))
        seek = self._generated > self.params.min_tokens
        if self._text.push(self._vocabulary.token_bytes[token], seek=seek):
            self.finish = "stop"

    def _check_end(self) -> None:
        constrained = self.constrained
        if self.finish is not None:
            return
        if constrained is not None and constrained.ended:
            self.finish = "forced" if constrained.closing else "stop"
        elif self._generated >= self.params.max_tokens:
            closed = constrained is not None and constrained.closes and constrained.whole
            self.finish = "forced" if closed else "length"

    # What to tell

    def waits(self) -> None:
        """See `Job`."""
        if self.params.stream:
            self.deliver(Progress(TokenEvent(""), self.base))

    def progress(self) -> None:
        """See `Job`. Where nobody reads along a message only costs time: then few are sent."""
        if not self.params.stream:
            now = time.monotonic()
            if now - self._told < _UNREAD_S:
                return
            self._told = now
        self.tell()

    def tell(self) -> None:
        """See `Job`."""
        piece = self._text.take()
        if piece is not None:
            self.deliver(Progress(self._event(piece), self.base))

    def conclude(self) -> None:
        """Deliver the rest and the outcome. `finish` must be set."""
        assert self.finish is not None
        piece, rest = self._text.finish()
        event = self._event(piece)
        kept = self._tokens[: piece.last]
        tail = tuple(self._vocabulary.encode_bytes(rest)) if rest else ()
        event = dataclasses.replace(event, tokens=event.tokens + tail)
        if event.text or event.tokens:
            self.deliver(Progress(event, self.base))
        whole = self.base + len(kept)
        self.deliver(
            Generated(
                base=self.base,
                tokens=tuple(token.id for token in kept) + tail,
                text=self._text.shown,
                finish_reason=self.finish,
                stop=self._text.stop,
                logprobs=_logprobs(kept),
                usage=self.usage(),
                timing=self.clock.timing(self.constrained.spent_s if self.constrained else 0.0),
                computed=min(self.seq.computed, whole),
                reusable=self._reusable,
            )
        )

    def _event(self, piece: Piece) -> TokenEvent:
        tokens = self._tokens[piece.first : piece.last]
        return TokenEvent(
            text=piece.text,
            tokens=tuple(token.id for token in tokens),
            forced=sum(token.forced for token in tokens),
            logprobs=_logprobs(tokens),
            forced_spans=self._forced_spans(piece, tokens),
        )

    def _forced_spans(self, piece: Piece, tokens: list[_Token]) -> tuple[tuple[int, int], ...]:
        """The characters of the piece that dictated tokens spell."""
        if not any(token.forced for token in tokens):
            return ()
        spans: list[tuple[int, int]] = []
        start = 0
        for token, end in zip(tokens, self._text.borders(piece), strict=True):
            if token.forced and end > start:
                joins = bool(spans) and spans[-1][1] == start
                spans[-1:] = [(spans[-1][0], end)] if joins else [*spans[-1:], (start, end)]
            start = end
        return tuple(spans)

    def usage(self) -> Usage:
        """See `Job`."""
        return dataclasses.replace(
            super().usage(),
            generated=self._generated,
            forced=self._forced,
            drafted=self._drafted,
            accepted=self._accepted,
        )


def _logprobs(tokens: list[_Token]) -> tuple[TokenLogprob, ...]:
    return tuple(token.logprob for token in tokens if token.logprob is not None)
