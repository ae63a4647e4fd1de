"""Scores of choices in one request: which prompts it holds, and what its answer says.

What lives here: `Scoring`. What does not: which tokens a choice has (`engine/transcript.py`), and
sending (`session.py`).

A choice's last token needs no place in a prompt: the server gives the log-probabilities of named
tokens after one (`token_ids_logprob`). So choices that differ in their last token alone share a
prompt, and choices of one token each cost no more than their common prefix, which is cached.
The numbers are those of a prompt for each choice: the same logits are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phloem.errors import EngineError
from phloem.programs.protocol import ScoredChoice
from phloem.runtime.engine.tokens import Choice
from phloem.runtime.sglang.reply import as_logprob, as_reply, count

__all__ = ["Scoring"]

Place = tuple[int, tuple[int, ...]]
"""A prompt: after how many of its tokens scores begin, and its tokens."""


class Scoring:
    """The scores of `choices` after `prefix` (not empty), and with `bare` after nothing too."""

    def __init__(self, prefix: Sequence[int], choices: Sequence[Choice], *, bare: bool) -> None:
        self._prefix = tuple(prefix)
        self._choices = choices
        self._bare = bare
        self._rows: dict[Place, list[int]] = {}
        """The prompts, and the tokens that are asked for after each."""
        for choice in choices:
            for place in self._places(choice):
                asked = self._rows.setdefault(place, [])
                if choice.tokens[-1] not in asked:
                    asked.append(choice.tokens[-1])

    @property
    def rows(self) -> int:
        """How many prompts it takes. None, where no choice has a token."""
        return len(self._rows)

    @property
    def computed(self) -> int:
        """The tokens of all prompts, less one prefix for each that begins with it."""
        shared = len(self._prefix)
        return sum(len(row) - (shared if first == shared else 0) for first, row in self._rows)

    def fields(self) -> dict[str, Any]:
        """The part of the request's body that says what is to be scored."""
        return {
            "input_ids": [list(row) for _, row in self._rows],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": [first - 1 for first, _ in self._rows],
            "token_ids_logprob": list(self._rows.values()),
            "top_logprobs_num": 1,
        }

    def read(self, replies: Any) -> tuple[tuple[ScoredChoice, ...], int]:
        """The scored choices, and how many of the prefix's tokens were cached.

        Raises `EngineError` for an answer that is not to this request, and what `as_reply` does.
        """
        if not isinstance(replies, list) or len(replies) != len(self._rows):
            given = len(replies) if isinstance(replies, list) else "none"
            raise EngineError(
                f"the server answered {given} of {len(self._rows)} prompts",
                hint="look into the server's log",
            )
        answers = {
            place: _Answer(reply, place) for place, reply in zip(self._rows, replies, strict=True)
        }
        scored = tuple(self._scored(choice, answers) for choice in self._choices)
        shared = len(self._prefix)
        cached = [answer.cached for (first, _), answer in answers.items() if first == shared]
        return scored, min((*cached, shared))

    def _places(self, choice: Choice) -> list[Place]:
        """Its prompts: after the prefix, and alone if that is asked and says anything."""
        if not choice.tokens:
            return []
        body = tuple(choice.tokens[:-1])
        places = [(len(self._prefix), self._prefix + body)]
        if self._bare and body:
            places.append((1, body))
        return places

    def _scored(self, choice: Choice, answers: Mapping[Place, _Answer]) -> ScoredChoice:
        tokens = tuple(choice.tokens)
        places = self._places(choice)
        logprobs, greedy = answers[places[0]].of(tokens) if places else ((), 0)
        alone: tuple[float | None, ...] = ()
        if self._bare and tokens:
            alone = (None, *(answers[places[1]].of(tokens[1:])[0] if len(places) > 1 else ()))
        return ScoredChoice(choice.text, tokens, logprobs, alone, greedy)


class _Answer:
    """What the server says of one prompt."""

    def __init__(self, reply: Mapping[str, Any], place: Place) -> None:
        first, row = place
        self._body = row[first:]
        self._reply = reply
        with as_reply(reply):
            self._meta = reply["meta_info"]
            self.cached = count(self._meta, "cached_tokens")

    def of(self, tokens: tuple[int, ...]) -> tuple[tuple[float, ...], int]:
        """The log-probabilities of a choice's `tokens`, and how many lead greedily."""
        with as_reply(self._reply):
            return self._of(tokens)

    def _of(self, tokens: tuple[int, ...]) -> tuple[tuple[float, ...], int]:
        body, last = tokens[:-1], tokens[-1]
        listed = self._tail("input_token_logprobs")
        ends = {entry[1]: entry[0] for entry in self._first("output_token_ids_logprobs")}
        found = [*(entry[0] for entry in listed), ends.get(last)]
        if [entry[1] for entry in listed] != list(body) or None in found:
            raise EngineError(
                "the server's log-probabilities are not those of the choice's tokens",
                hint="look into the server's log",
            )
        best = [*self._tail("input_top_logprobs"), self._first("output_top_logprobs")]
        greedy = 0
        for token, top in zip(tokens, best, strict=False):
            if not top or top[0][1] != token:
                break
            greedy += 1
        return tuple(map(as_logprob, found)), greedy

    def _tail(self, name: str) -> list[Any]:
        """The entries of the tokens after the prefix."""
        size = len(self._body)
        return list((self._meta.get(name) or [])[-size:]) if size else []

    def _first(self, name: str) -> list[Any]:
        """The entry of the token that would come next."""
        listed = self._meta.get(name) or []
        return list(listed[0] or []) if listed else []
