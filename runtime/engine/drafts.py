"""Guessing the next tokens of a text from what was said before it: prompt lookup.

What lives here: `Drafter`, the guesses of one generation and whether they pay. What does not: how a
guess is checked (`completion.py`: a token stands if and only if it is the one drawn from its
row, so guesses change no token).

A model that quotes its passages, or repeats an earlier step, repeats whole runs of tokens. So the
last tokens are looked up among all before them, and what followed there is the guess (Saxena's
"prompt lookup decoding", 2023). Rows of guesses cost least in a pass that is small, because such
a pass mostly reads weights: the more streams there are, the more of the guesses must stand.
"""

from __future__ import annotations

from array import array

__all__ = ["Drafter"]

_KEYS = (3, 2)
"""Lengths of the runs that are looked up, the longer first."""

_SHORTEST, _LONGEST = 2, 16
"""Tokens of a guess."""

_PAUSE = 32
"""Passes without guesses, once they have stopped paying."""

_WEIGHT_ROWS, _KV_TOKENS = 12, 350
"""Reading all weights takes as long as so many rows do; the KV of so many tokens, as one does.
Measured with SmolLM2-135M on two cores, between its 4 bits (8 rows) and bfloat16 (40)."""

_WEIGHT = 0.3
"""Of the latest guess in the share that stands."""


class Drafter:
    """The guesses of one generation."""

    def __init__(self) -> None:
        self._said = bytearray()
        self._length = 4
        self._share = 1.0
        self._pause = 0

    def propose(self, tokens: list[int], limit: int, streams: int) -> list[int]:
        """What may follow `tokens`, which have grown since the last call: at most `limit`.

        `streams` is how many sequences share the pass.
        """
        limit = min(limit, self._length)
        if self._pause:
            self._pause -= 1
            return []
        if limit <= 0:
            return []
        worth = _worth(streams, len(tokens))
        if self._share < worth:
            self._pause, self._share, self._length = _PAUSE, worth, _SHORTEST
            return []
        at = self._find(tokens)
        if at is None:
            return []
        # What follows may reach into the guess itself, where the text repeats.
        guess: list[int] = []
        for i in range(at, at + limit):
            guess.append(tokens[i] if i < len(tokens) else guess[i - len(tokens)])
        return guess

    def learn(self, guessed: int, stood: int) -> None:
        """Of `guessed` tokens `stood` were right."""
        self._share += _WEIGHT * (stood / guessed - self._share)
        if stood == guessed:
            self._length = min(2 * self._length, _LONGEST)
        else:
            self._length = max(_SHORTEST, min(self._length, stood + 1))

    def _find(self, tokens: list[int]) -> int | None:
        """Where the tokens go on that follow the latest earlier occurrence of the last ones."""
        said = self._said
        width = array("i").itemsize
        said += array("i", tokens[len(said) // width :]).tobytes()
        for size in _KEYS:
            key = bytes(said[-size * width :])
            at = said.rfind(key, 0, len(said) - 1)
            while at >= 0 and at % width:  # found in the middle of a number
                at = said.rfind(key, 0, at + len(key) - 1)
            if at >= 0 and len(key) == size * width:
                return at // width + size
        return None


def _worth(streams: int, context: int) -> float:
    """The share of guesses that must stand: what a row costs beside a stream's part of the pass.

    That part is a row of its own, its share of reading the weights, and reading its own KV, which
    further rows of the stream share. Guesses of branches that wait for each other gain less than
    their tokens, so half as many more must stand.
    """
    part = 1 + _WEIGHT_ROWS / streams + context / _KV_TOKENS
    return min(0.8, max(0.2, 1.5 / part))
