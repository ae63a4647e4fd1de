"""Which dialects of JSON Schema there are, and which keywords each has.

What lives here: drafts by number and the keywords that came later. What does not: what keywords
mean. Dialects are numbered 3, 4, 6, 7 by their draft, 8 for 2019-09 and 9 for 2020-12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Dialect"]

_DRAFTS = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "2019-09": 8,
    "2020-12": 9,
}
_SINCE = {
    "const": 6, "contains": 6, "propertyNames": 6, "if": 7, "then": 7, "else": 7,
    "dependentRequired": 8, "dependentSchemas": 8, "unevaluatedProperties": 8,
    "unevaluatedItems": 8, "minContains": 8, "maxContains": 8, "$recursiveRef": 8,
    "$dynamicRef": 9, "prefixItems": 9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect. `declared` tells whether the schema names it; without a name the newest holds,
    and spellings that it dropped keep their old meaning."""

    draft: int
    declared: bool

    @classmethod
    def of(cls, root: Any) -> Dialect:
        """The dialect that a schema's `$schema` names, or the newest."""
        name = root.get("$schema") if isinstance(root, dict) else None
        found = [n for text, n in _DRAFTS.items() if isinstance(name, str) and text in name]
        return cls(found[0] if found else 9, bool(found))

    def knows(self, keyword: str) -> bool:
        """Whether the keyword has a meaning; a dialect older than a keyword ignores it."""
        return not self.declared or self.draft >= _SINCE.get(keyword, 0)
