"""One generation's place in one constraint: llguidance's matcher behind `spec.Matcher`.

What lives here: the adapter, which turns llguidance's silent error states into
`ConstraintError` and its mask calls into the buffer the engine owns. What does not: compiling
(compiler.py) and the search for a short way to the end (closing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from phloem.errors import ConstraintError
from phloem.grammar.closing import Admits, anything, shortest_completion
from phloem.grammar.engine import EngineTokenizer, try_consume

__all__ = ["EngineMatcher"]

_SKIPS = 8
"""Of a way found earlier so many beginnings are left out, one after the other."""


class EngineMatcher:
    """`spec.Matcher` over an `LLMatcher`.

    `byte_root` is the same grammar over single bytes at its start, for `closing` (None where the
    grammar names special tokens, which bytes can't spell); `prelude` is
    text that must be generated before the grammar of `byte_root` begins (`Constraint.after`).
    """

    __slots__ = (
        "_accepted", "_address", "_byte_root", "_ends", "_ll", "_out", "_prelude", "_tokenizer",
        "_way", "_way_from", "_words",
    )  # fmt: skip

    def __init__(
        self,
        ll: LLMatcher,
        tokenizer: EngineTokenizer,
        byte_root: LLMatcher | None,
        prelude: str | None = None,
        accepted: Sequence[int] = (),
        words: Sequence[bytes] = (),
    ) -> None:
        self._ll = ll
        self._tokenizer = tokenizer
        self._byte_root = byte_root
        self._prelude = prelude
        self._accepted = list(accepted)
        self._words = words
        self._ends = 0
        self._out: Any = None
        """The buffer that was filled last; it is the same one nearly always."""
        self._address = 0
        self._way = b""
        """The way to an end that was found last, and how many bytes of text were before it."""
        self._way_from = 0

    def fill_mask(self, out: Any) -> bool:
        """See `spec.Matcher`. `out` is a contiguous int32 numpy array or CPU torch tensor."""
        size = 4 * self._tokenizer.words
        if out is not self._out:
            self._address, given = _buffer(out)
            if given != size:
                raise ValueError(f"the mask holds {given} bytes, the vocabulary needs {size}")
            self._out = out
        self._ll.unsafe_compute_mask_ptr(self._address, size)
        self._check("computing the mask")
        return True

    def accept(self, token: int) -> None:
        """See `spec.Matcher`."""
        if token in self._tokenizer.eos_ids and self.is_complete():
            # The engine below does not count an end after which nothing could follow anyway.
            self._ends += 1
        elif not self._ll.consume_token(token):
            self._check(f"accepting token {token}")
        self._accepted.append(token)

    def accepts_prefix(self, tokens: Sequence[int]) -> int:
        """See `spec.Matcher`."""
        if self._ends or not tokens:
            return 0
        if len(tokens) == 1:
            count = int(self._ll.validate_tokens(list(tokens)))
            complete = count == 0 and self._ll.is_accepting()
        else:
            # One by one: the engine bounds its work between two tokens.
            count = try_consume(self._ll, tokens)
            complete = self._ll.is_accepting()
            self._ll.rollback(count)
        # The engine does not count an end after which nothing could follow anyway.
        if complete and count < len(tokens) and tokens[count] in self._tokenizer.eos_ids:
            count += not (count and tokens[count - 1] in self._tokenizer.eos_ids)
        self._check("looking ahead")
        return count

    def rollback(self, count: int) -> None:
        """See `spec.Matcher`."""
        if not 0 <= count <= len(self._accepted):
            raise ValueError(f"can't undo {count} of {len(self._accepted)} tokens")
        if count == 0:
            return
        ends = min(self._ends, count)
        if count > ends:
            self._ll.rollback(count - ends)
            self._check(f"rolling back {count} tokens")
        self._ends -= ends
        del self._accepted[-count:]

    def forced(self) -> list[int]:
        """See `spec.Matcher`."""
        tokens = [] if self._ends else list(self._ll.compute_ff_tokens())
        self._check("looking for forced tokens")
        # A special token is forced where the grammar names it, not where its text must be written.
        if any(map(self._tokenizer.ll.is_special_token, tokens)) and (
            self.accepts_prefix(tokens) < len(tokens)
        ):
            return self._tokenizer.encode(bytes(self._ll.compute_ff_bytes()))
        return tokens

    def is_complete(self) -> bool:
        """See `spec.Matcher`."""
        self._check("asking whether the text is complete")
        return bool(self._ll.is_accepting())

    def is_finished(self) -> bool:
        """See `spec.Matcher`."""
        self._check("asking whether the text is finished")
        return self._ends > 0 or bool(self._ll.is_stopped())

    def closing(self, limit: int, admits: Admits = anything) -> list[int] | None:
        """See `spec.Matcher`. Only ways that `admits` takes (as bytes of the grammar's text)."""
        if self.is_complete():
            return []
        if self._byte_root is None:
            return None
        text = bytes(self._tokenizer.ll.decode_bytes(self._accepted))
        lead = b""
        if self._prelude is not None:
            trigger = self._prelude.encode()
            before, found, text = text.partition(trigger)
            if not found:
                lead, text = _missing(before, trigger), b""
        tokens = None if lead else self._rest_of_way(text, limit, admits)
        if tokens is None:
            rest = shortest_completion(self._byte_root, text, admits, self._words)
            if rest is None:
                return None
            self._way, self._way_from = rest, len(text)
            tokens = self._encode_lead(lead) + self._tokenizer.encode(rest)
        if len(tokens) > limit or self.accepts_prefix(tokens) != len(tokens):
            return None
        return tokens

    def _rest_of_way(self, text: bytes, limit: int, admits: Admits) -> list[int] | None:
        """What is left of the way found last, if it still leads to an end.

        It mostly does: what closes a string closes it some characters later too. That costs
        microseconds where a search costs a hundred times as many.
        """
        grown = len(text) - self._way_from
        for skip in (max(0, grown), *range(_SKIPS)):
            rest = self._way[skip:]
            tokens = self._tokenizer.encode(rest) if rest else []
            if 0 < len(tokens) <= limit and self._completes(tokens) and admits(rest):
                self._way, self._way_from = rest, len(text)
                return tokens
        return None

    def _completes(self, tokens: list[int]) -> bool:
        """Whether the text is complete after these tokens."""
        ended = [*tokens, self._tokenizer.eos_ids[0]]
        return self.accepts_prefix(ended) == len(ended)

    def copy(self) -> EngineMatcher:
        """See `spec.Matcher`."""
        twin = EngineMatcher(
            self._ll.deep_copy(), self._tokenizer, self._byte_root, self._prelude,
            self._accepted, self._words,
        )  # fmt: skip
        twin._ends = self._ends
        return twin

    def _encode_lead(self, lead: bytes) -> list[int]:
        special = self._tokenizer.special_ids.get(lead.decode(errors="replace"))
        if special is not None:
            return [special]
        return self._tokenizer.encode(lead)

    def _check(self, doing: str) -> None:
        if self._ll.is_error():
            raise ConstraintError(
                f"the constraint engine failed while {doing}: {self._ll.get_error().strip()}",
                hint="a token outside the mask was accepted, or the constraint is too complex",
                after_tokens=len(self._accepted),
            )


def _missing(text: bytes, trigger: bytes) -> bytes:
    """The part of `trigger` still to come after `text`, which may end in its beginning."""
    for size in range(min(len(text), len(trigger) - 1), 0, -1):
        if text.endswith(trigger[:size]):
            return trigger[size:]
    return trigger


def _buffer(out: Any) -> tuple[int, int]:
    """Address and size in bytes of a numpy array or a torch tensor (torch is not imported)."""
    if hasattr(out, "data_ptr"):
        return int(out.data_ptr()), int(out.numel() * out.element_size())
    return int(out.ctypes.data), int(out.nbytes)
