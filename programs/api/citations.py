"""Citations that can't be invented: a schema whose sources are the documents that were found.

What lives here: `cited`. What does not: building constraints (`programs/constraints.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.programs.api.passages import Passages
from phloem.programs.constraints import Cited
from phloem.retrieval.base import Hit

__all__ = ["cited"]


def cited(schema: Any, docs: Passages | Sequence[Hit], field: str = "sources") -> Any:
    """`schema` for `gen(schema=...)`, in which every `field` names only what was retrieved.

    `docs` are hits, or (better, since some may have been left out) the text that
    `ph.passages` made of them. Where the field holds text its values are document ids, where it
    holds whole numbers they are the numbers of the passages; a list has at most as many as there
    are documents. `schema` may be anything that `gen(schema=)` takes, and the step's value is of
    that type. Raises `ConstraintError`, when the step runs, for a schema without such a field, and
    for a field that must name a document where there is none.
    """
    hits = docs.sources if isinstance(docs, Passages) else docs
    return Cited(schema, tuple(dict.fromkeys(hit.id for hit in hits)), len(hits), field)
