"""`quote`: a step whose text is copied, word for word, from given passages.

What lives here: the primitive and its value. What does not: the constraint and the search for
the place (the analyser's).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.programs.api import value_style
from phloem.programs.effects import Expression, Generate
from phloem.programs.executor.frame import value_frame
from phloem.programs.executor.run import Run
from phloem.programs.marks import check_keywords, check_name, mark
from phloem.programs.sampling import clean
from phloem.retrieval.base import Hit

__all__ = ["quote"]


@mark("gen")
def quote(
    name: str,
    docs: Sequence[Hit],
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    timeout: float | None = None,
    retries: int = 0,
    fresh: bool = False,
    **variables: Any,
) -> Any:
    """Generate a run of whole words out of one of `docs`, and keep it under `name`.

    The value is a `Quote`: the text itself, with the `document` it is from and its `start` and
    `end` there (in characters), and all places where it stands in `spans`. Raises
    `ConstraintError` if there is nothing to quote from, `TruncatedOutput` if `max_tokens` ended
    it in the middle of a word that no passage has.
    """
    check_name(name)
    passages = tuple((doc.id, doc.text) for doc in docs)
    constraint = Run.analyser().quote(passages)
    options = clean({"max_tokens": max_tokens, "temperature": temperature})
    effect = Generate(name, options, constraint, quoted=passages, timeout=timeout, retries=retries)
    frame = value_frame()
    if frame is not None:
        return value_style.step(frame, effect, {"docs": docs, **variables}, fresh=fresh)
    check_keywords("quote", quote, variables)
    return Expression((effect,))
