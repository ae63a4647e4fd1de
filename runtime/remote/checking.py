"""Whether a server kept a constraint.

What lives here: the compile before a step, which refuses what can't be enforced, and the check of
the text after it. What does not: enforcing (the server does).
"""

from __future__ import annotations

import asyncio
import json

from phloem.errors import ConstraintError, EngineError
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint, Matcher
from phloem.programs.protocol import StepResult
from phloem.runtime.model.tokenizer import Tokenizer

__all__ = ["Checker"]


class Checker:
    """Checks for one tokenizer. `remedy` says what to do about a server that keeps nothing."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        tokenizer: Tokenizer,
        remedy: str = "start it with --grammar-backend xgrammar or llguidance",
    ) -> None:
        self._compiler = compiler
        self._tokenizer = tokenizer
        self._remedy = remedy

    async def compile(self, constraint: Constraint) -> None:
        """Raises `ConstraintError` for what can't be enforced in full. Off the event loop."""
        await asyncio.to_thread(self._compiler.compile, constraint)

    def matcher(self, constraint: Constraint) -> Matcher:
        """A place at its beginning. Fast once `compile` is done."""
        return self._compiler.matcher(constraint)

    def portable(self, constraint: Constraint) -> str:
        """It as Lark text for llguidance on the server. Raises `ConstraintError`. Fast once
        `compile` is done."""
        return self._compiler.portable(constraint)

    def check(self, constraint: Constraint, result: StepResult) -> None:
        """Raises `EngineError` if the text is none of the constraint's, nor the beginning of one
        where it was cut."""
        cut = result.finish_reason == "length" or result.stop is not None
        # The ids that were sent, where there are any: a special token has no text.
        tokens = list(result.tokens) or self._tokenizer.encode(result.text)
        if self._fits(constraint, tokens, cut):
            return
        if constraint.kind == "json_schema" and self._spaced(constraint, result.text, cut):
            return
        raise EngineError(
            f"the server did not keep the {constraint.kind} constraint: {result.text[:200]!r}",
            hint=self._remedy,
            text=result.text,
        )

    def _spaced(self, constraint: Constraint, text: str, cut: bool) -> bool:
        """White space in JSON is the server's choice (--constrained-json-disable-any-whitespace).

        How a cut text would go on can't be told, once its white space is left out.
        """
        try:
            value = json.loads(text)
        except ValueError:
            return cut
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return self._fits(constraint, self._tokenizer.encode(compact), cut=False)

    def _fits(self, constraint: Constraint, tokens: list[int], cut: bool) -> bool:
        matcher = self._compiler.matcher(constraint)
        try:
            return _accepted(matcher, tokens) and (cut or matcher.is_complete())
        except ConstraintError:
            return False


def _accepted(matcher: Matcher, tokens: list[int]) -> bool:
    if matcher.accepts_prefix(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.accept(token)
    return True
