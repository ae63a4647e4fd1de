"""A session's tokens, the text not yet settled into tokens, and where each part came from.

What lives here: `Transcript` and the `Prompt` it gives a step. What does not: any KV. Which
tokens are computed already is the prefix cache's knowledge; a transcript is plain values.

Adjacent texts are tokenised as one. So the texts at the end stay open (`pending`): a later text
joins them, and only a special token or a generated one closes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from phloem.errors import Unsupported
from phloem.programs.protocol import (
    PrefixMiss,
    ScoredChoice,
    Segment,
    Snapshot,
    Special,
    Text,
)
from phloem.runtime.engine.tokens import Choice, common_prefix
from phloem.runtime.model.tokenizer import Tokenizer

__all__ = ["Prompt", "Transcript"]

Origins = list[tuple[int, str | None]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a step starts from: `tokens`, of which those from `open_from` on are open text.

    `heal`: the border may be healed. `segments` counts the pending segments it is made of.
    """

    tokens: list[int]
    open_from: int
    heal: bool
    segments: int
    origins: Origins


class Transcript:
    """`start` is the token an empty session begins with when it must, `opening` one that every
    session begins with, if the model wants that."""

    def __init__(self, tokenizer: Tokenizer, start: int, opening: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._start = start
        self._opening = opening
        self._tokens: list[int] = []
        self._origins: Origins = []
        self._pending: list[Segment] = []
        # The longest run of tokens, from the first, that the engine has computed once.
        self._computed: list[int] = []

    def append(self, segments: Sequence[Segment]) -> None:
        """Add segments. Raises `Unsupported`, changing nothing, for an unknown special."""
        for segment in segments:
            if isinstance(segment, Special):
                self._special(segment)
        self._pending += [s for s in segments if isinstance(s, Special) or s.text]

    def prompt(self) -> Prompt:
        """All tokens as they stand now."""
        self._settle_specials()
        if not self._tokens and not self._pending:
            self._tokens = [self._start]
        texts = [segment for segment in self._pending if isinstance(segment, Text)]
        joined = self._tokenizer.encode("".join(text.text for text in texts)) if texts else []
        return Prompt(
            tokens=self._tokens + joined,
            open_from=len(self._tokens),
            heal=bool(texts) and texts[-1].heal,
            segments=len(self._pending),
            origins=self._origins + self._origins_of(texts, joined, len(self._tokens)),
        )

    def settle(self, prompt: Prompt, base: int, tokens: Sequence[int]) -> None:
        """A step ended: the session is prompt.tokens[:base] + tokens, and nothing of it is open."""
        self._tokens = prompt.tokens[:base] + list(tokens)
        self._origins = [*(o for o in prompt.origins if o[0] < base), (base, None)]
        del self._pending[: prompt.segments]

    def note_computed(self, tokens: list[int]) -> None:
        """The engine has computed these tokens."""
        self._computed = tokens

    def miss(self, prompt: Prompt, reused: int, reusable: int) -> PrefixMiss | None:
        """Where a step computed again what had been computed, if it did.

        `reusable` tokens at most could be reused: the last ones are computed for their logits.
        """
        known = min(common_prefix(self._computed, prompt.tokens), reusable)
        if reused >= known:
            return None
        origin = next((o for at, o in reversed(prompt.origins) if at <= reused), None)
        return PrefixMiss(reused, self._tokenizer.decode([prompt.tokens[reused]]), origin)

    def computed_chars(self, prompt: Prompt, reused: int) -> int:
        """How many characters at the prompt's end its tokens after `reused` spell."""
        return len(self._tokenizer.spell(prompt.tokens[reused:]))

    def choices(
        self, prompt: Prompt, given: Sequence[str | tuple[int, ...]]
    ) -> tuple[list[int], list[Choice]]:
        """The common prefix of all choices, and each choice's tokens after it.

        Open text and choice are tokenised as one; where that changes the open text's last
        tokens, for any choice, these count as part of every choice. A choice given as ids is
        taken as it is, and then the others stand alone too.
        """
        separate = [self._choice(choice) for choice in given]
        texts = [choice for choice in given if isinstance(choice, str)]
        if not prompt.heal or len(texts) < len(given):
            return prompt.tokens, separate
        open_text = "".join(s.text for s in self._pending if isinstance(s, Text))
        opened = prompt.tokens[prompt.open_from :]
        joined = [self._tokenizer.encode(open_text + text) for text in texts]
        shared = min((common_prefix(opened, tokens) for tokens in joined), default=len(opened))
        if prompt.open_from + shared == 0:  # nothing would be left to start from
            return prompt.tokens, separate
        choices = [Choice(t, tokens[shared:]) for t, tokens in zip(texts, joined, strict=True)]
        return prompt.tokens[: prompt.open_from + shared], choices

    def spelled(self, choices: Sequence[ScoredChoice]) -> tuple[ScoredChoice, ...]:
        """The choices with the texts of their tokens."""
        return tuple(
            replace(choice, pieces=tuple(self._tokenizer.decode([t]) for t in choice.tokens))
            for choice in choices
        )

    def _choice(self, given: str | tuple[int, ...]) -> Choice:
        if isinstance(given, str):
            return Choice(given, self._tokenizer.encode(given))
        self._check_known(given)
        return Choice(self._tokenizer.decode(given), list(given))

    def _check_known(self, tokens: Sequence[int]) -> None:
        size = self._tokenizer.vocab_size
        strange = next((token for token in tokens if not 0 <= token < size), None)
        if strange is not None:
            raise Unsupported(
                f"the model has no token {strange}; its ids are 0 to {size - 1}",
                hint="tokenise with the model's own tokenizer",
            )

    def copy(self) -> Transcript:
        """An independent transcript in the same state."""
        twin = Transcript(self._tokenizer, self._start, self._opening)
        twin._tokens = self._tokens
        twin._origins = self._origins
        twin._pending = list(self._pending)
        twin._computed = self._computed
        return twin

    def snapshot(self, fingerprint: str, branch: str, namespace: str) -> Snapshot:
        """The state as plain values."""
        self._settle_specials()
        return Snapshot(
            fingerprint=fingerprint,
            tokens=tuple(self._tokens),
            pending=tuple(self._pending),
            branch=branch,
            namespace=namespace,
            origins=tuple(self._origins),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of `snapshot`; this transcript must be new.

        Raises `Unsupported` for tokens outside the vocabulary.
        """
        self._check_known(snapshot.tokens)
        self._tokens = list(snapshot.tokens)
        self._origins = list(snapshot.origins)
        self.append(snapshot.pending)

    def _settle_specials(self) -> None:
        """Open the session, and turn everything up to the last pending special into tokens."""
        if not self._tokens and self._opening is not None and not self._is_opened():
            self._tokens = [self._opening]
        last = max((i for i, s in enumerate(self._pending) if isinstance(s, Special)), default=-1)
        if last < 0:
            return
        settled, self._pending = self._pending[: last + 1], self._pending[last + 1 :]
        tokens, origins = list(self._tokens), list(self._origins)
        texts: list[Text] = []
        for segment in settled:
            if isinstance(segment, Text):
                texts.append(segment)
                continue
            joined = self._tokenizer.encode("".join(text.text for text in texts))
            origins += self._origins_of(texts, joined, len(tokens))
            tokens += joined
            origins.append((len(tokens), segment.origin))
            tokens.append(self._special(segment))
            texts = []
        self._tokens, self._origins = tokens, origins

    def _is_opened(self) -> bool:
        """Whether whoever wrote the first segment has opened the session already."""
        first = self._pending[0] if self._pending else None
        return isinstance(first, Special) and self._special(first) == self._opening

    def _special(self, segment: Special) -> int:
        found = self._tokenizer.special_id(segment.token)
        if found is None:
            raise Unsupported(
                f"the model's tokenizer has no special token {segment.token!r}",
                hint="use the model's own chat format, or write it as text",
            )
        return found

    def _origins_of(self, texts: list[Text], tokens: list[int], start: int) -> Origins:
        """Which token is the first to begin in each text."""
        ends = accumulate(len(text.text.encode()) for text in texts[:-1])
        starts = [0, *accumulate(map(self._tokenizer.length, tokens))][:-1]
        firsts = [0, *(bisect_left(starts, end) for end in ends), len(tokens)]
        return [
            (start + first, text.origin)
            for text, first, after in zip(texts, firsts, firsts[1:], strict=False)
            if first < after
        ]
