"""SGLang's answers, read as events and results.

What lives here: `Output`, the text of one generation as its stream comes in. What does not: scores
(`scoring.py`) and HTTP (`runtime/remote/http.py`).

The tokens count, not the server's text: text, stops and pieces are made here from the ids, so a
session's text and its tokens can't drift apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phloem.errors import Cancelled, EngineError, ModelError, Overloaded
from phloem.programs.protocol import (
    FinishReason,
    SamplingParams,
    StepResult,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from phloem.runtime.engine.output_text import Piece
from phloem.runtime.engine.params import make_output_text
from phloem.runtime.engine.vocabulary import Vocabulary

__all__ = ["Output", "as_logprob", "as_reply", "check_reply", "count"]

_SHOWN = 500
"""Characters of a bad answer that its error shows."""
_ROUNDING = 0.01
"""How far above 0 a log-probability may come out in a few bits."""


class Output:
    """One generation, which may take several requests if servers fail."""

    def __init__(self, params: SamplingParams, vocabulary: Vocabulary) -> None:
        self.meta: Mapping[str, Any] = {}
        self.ended = False
        """Whether a stop was found here."""
        self.finished = False
        """Whether the server has ended it."""
        self._params = params
        self._vocabulary = vocabulary
        self._incremental = False
        self._text = make_output_text(params)
        self._ends = vocabulary.eos_ids | set(params.stop_token_ids)
        self._asked = params.max_tokens
        self._received: list[int] = []
        self._earlier = 0
        self.tokens: list[int] = []
        """What has come so far, shown or not."""
        self.forced = 0
        """How many of them the constraint dictated: no server was asked."""
        self._generated = self._reused = 0
        self._resumed = False
        self._logprobs: list[TokenLogprob] = []
        self._reason: FinishReason = "length"

    def begin(self, incremental: bool) -> None:
        """A request goes out that continues from `tokens`.

        `incremental`: each event holds the new tokens only, not all of the request's so far.
        """
        self._incremental = incremental
        self._received, self._earlier = [], len(self.tokens)
        self._asked = self._params.max_tokens - self._earlier

    @property
    def came(self) -> list[int]:
        """What this request has brought."""
        return self.tokens[self._earlier :]

    def force(self, tokens: Sequence[int]) -> None:
        """The output goes on with these; the next event shows them."""
        before = len(self.tokens)
        self._take(tokens)
        self.forced += len(self.tokens) - before

    @property
    def cut(self) -> bool:
        """Whether the server ended it before `max_tokens`, for no reason but its length."""
        full = len(self.tokens) >= self._params.max_tokens
        return self.finished and self._reason == "length" and not full

    def paused(self, stop: str | None) -> bool:
        """Whether the server stopped where it was told to, so that it is not the end."""
        return stop is not None and self.finished and not self.ended and self._matched() == stop

    def resume(self) -> None:
        """The server did not end it, it stopped where it was told to."""
        self.finished, self.meta, self._reason = False, {}, "length"
        self._resumed = True

    def complete(self) -> None:
        """Nothing can follow."""
        self.finished, self.meta, self._reason = True, {}, "stop"

    def read(self, reply: Mapping[str, Any]) -> TokenEvent | None:
        """Take one event of the stream; what it shows, if anything.

        Raises `EngineError` for what is no answer to the request.
        """
        with as_reply(reply):
            return self._read(reply)

    def _read(self, reply: Mapping[str, Any]) -> TokenEvent | None:
        self.meta = reply["meta_info"]
        self._generated = self._earlier + count(self.meta, "completion_tokens")
        if not self._resumed:
            self._reused = count(self.meta, "cached_tokens")
        tokens = self._new(reply.get("output_ids"))
        if self._params.logprobs is not None:
            self._read_logprobs(len(tokens))
        reason = self.meta.get("finish_reason")
        if reason is not None:
            self.finished = True
            self._reason = "length" if reason["type"] == "length" else "stop"
            if tokens and tokens[-1] in self._ends and self._reason == "stop":
                del tokens[-1]
                self._generated -= 1
        self._take(tokens)
        piece = None if self.ended or self.finished else self._text.take()
        return None if piece is None else self._event(piece)

    def finish(self, prompt: int, seed: int | None) -> tuple[TokenEvent, StepResult]:
        """The last piece, and the whole. `prompt` counts the prompt's tokens."""
        piece, rest = self._text.finish()
        tail = tuple(self._vocabulary.encode_bytes(rest)) if rest else ()
        event = self._event(piece)
        event = TokenEvent(event.text, event.tokens + tail, 0, event.logprobs)
        reused = min(prompt, self._reused)
        result = StepResult(
            text=self._text.shown,
            tokens=(*self.tokens[: piece.last], *tail),
            finish_reason=self._reason,
            usage=Usage(
                prompt=prompt,
                reused=reused,
                prefilled=prompt - reused,
                generated=max(self._generated, len(self.tokens)),
                forced=self.forced,
            ),
            stop=self._text.stop or self._matched(),
            seed=seed,
            logprobs=tuple(self._logprobs[: piece.last]),
        )
        return event, result

    def _matched(self) -> str | None:
        """The stop text that the server cut off, so that it never came."""
        matched = (self.meta.get("finish_reason") or {}).get("matched")
        return matched if isinstance(matched, str) else None

    def _new(self, ids: Any) -> list[int]:
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise EngineError(
                f"the server's output_ids are no list of token ids: {str(ids)[:_SHOWN]}",
                hint="use a newer SGLang",
            )
        before = len(self._received)
        new = list(ids) if self._incremental else list(ids[before:])
        if not self._incremental and ids[:before] != self._received:
            raise EngineError(
                "the server's output_ids do not go on from those of the event before",
                hint="use a newer SGLang",
            )
        self._received += new
        if len(self._received) > max(1, self._asked):
            raise EngineError(
                f"the server sent {len(self._received)} tokens where {self._asked} were asked for",
                hint="look into the server's log",
            )
        return new

    def _take(self, tokens: Sequence[int]) -> None:
        """Add tokens up to a stop."""
        for token in tokens:
            self._push(token)
            if self._text.stop is not None:
                self.ended, self._reason = True, "stop"
                break

    def _push(self, token: int) -> None:
        if not 0 <= token < self._vocabulary.size:
            raise ModelError(
                f"the server sent token {token}, but the tokenizer here ends at "
                f"{self._vocabulary.size - 1}",
                hint="give tokenizer= the server's own; if it is that, the model has rows that are "
                "no tokens: a lower temperature, top_p or top_k keeps them out",
            )
        self.tokens.append(token)
        seek = len(self.tokens) > self._params.min_tokens
        self._text.push(self._vocabulary.token_bytes[token], seek=seek)

    def _read_logprobs(self, new: int) -> None:
        """Some versions send all so far in incremental streams too."""
        listed = self.meta.get("output_token_logprobs") or []
        tops = self.meta.get("output_top_logprobs") or []
        read = [
            TokenLogprob(token, self._text_of(token), as_logprob(logprob), self._top(tops, i))
            for i, (logprob, token, *_) in enumerate(listed)
        ]
        if len(read) >= len(self._received) or not self._incremental:
            self._logprobs[self._earlier :] = read
        elif new:
            self._logprobs += read[-new:]

    def _top(self, tops: Sequence[Any], at: int) -> tuple[tuple[int, str, float], ...]:
        if not self._params.logprobs or at >= len(tops):
            return ()
        # What a constraint bars has no log-probability.
        entries = [entry for entry in tops[at] if entry[0] is not None]
        return tuple(
            (token, self._text_of(token), as_logprob(logprob)) for logprob, token, *_ in entries
        )

    def _text_of(self, token: int) -> str:
        return self._vocabulary.text(token)

    def _event(self, piece: Piece) -> TokenEvent:
        return TokenEvent(
            piece.text,
            tuple(self.tokens[piece.first : piece.last]),
            logprobs=tuple(self._logprobs[piece.first : piece.last]),
        )


@contextlib.contextmanager
def as_reply(reply: Any) -> Iterator[None]:
    """Read a reply: raises what `check_reply` does, and `EngineError` where reading it fails."""
    check_reply(reply)
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise EngineError(
            f"the server's answer makes no sense ({type(error).__name__}: {error}): "
            f"{str(reply)[:_SHOWN]}",
            hint="use a newer SGLang",
        ) from error


def as_logprob(value: Any) -> float:
    """A log-probability. Raises `ValueError` for what is none (NaN is sent as null)."""
    if type(value) not in {int, float} or not value <= _ROUNDING:
        raise ValueError(f"{value!r} is no log-probability")
    return float(value)


def count(meta: Mapping[str, Any], name: str) -> int:
    """A number of tokens, 0 where it is not said. Raises `ValueError` for what is none."""
    value = meta.get(name) or 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value


def check_reply(reply: Any) -> None:
    """Raises for an error inside a stream that began well, for an aborted request (`Cancelled` if
    someone asked for it), and for what is no answer of SGLang's."""
    meta = reply.get("meta_info") if isinstance(reply, Mapping) else None
    if not isinstance(meta, Mapping):
        error = reply.get("error", reply) if isinstance(reply, Mapping) else reply
        message = error.get("message", error) if isinstance(error, Mapping) else error
        raise EngineError(f"the server failed: {str(message)[:_SHOWN]}", hint="see its log")
    reason = meta.get("finish_reason") or {"type": None}
    if not isinstance(reason, Mapping) or "type" not in reason:
        raise EngineError(
            f"the server gives a finish_reason without a type: {str(reason)[:_SHOWN]}",
            hint="use a newer SGLang",
        )
    if reason["type"] != "abort":
        return
    message = reason.get("message") or "no reason given"
    if reason.get("status_code") is None:
        raise Cancelled(f"the server aborted the request: {message}")
    kind = Overloaded if reason["status_code"] in {429, 503} else EngineError
    raise kind(
        f"the server aborted the request ({reason['status_code']}): {message}",
        hint="look into the server's log",
        status=reason["status_code"],
    )
