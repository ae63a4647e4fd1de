"""A JSON Schema document: its dialect, its subschemas, and where a `$ref` leads.

What lives here: `Document`, which names every subschema it is asked for by a small number, and
resolves references by identifier, anchor and JSON pointer within the document. What does not:
what keywords mean (flatten.py). Nothing is fetched: a reference out of the document is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from phloem.errors import ConstraintError
from phloem.grammar.schema.dialects import Dialect
from phloem.grammar.schema.shapes import check_shape

__all__ = ["Document", "Sub"]

_MAX_SUBSCHEMAS = 50_000
# Members whose value is data, not schemas: identifiers in there mean nothing.
_DATA = {"enum", "const", "default", "examples", "example"}
# Members whose members are schemas, whatever their names.
_NAMED = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sub:
    """A subschema: its value, the base URI around it, and its JSON path for messages."""

    value: Any
    base: str
    path: str


class Document:
    """A parsed schema. `draft` is 3, 4, 6, 7, 8 (2019-09) or 9 (2020-12).

    `declared` tells whether the schema names its dialect; without a name the newest one holds,
    and older spellings that it dropped (`definitions`, `dependencies`, boolean
    `exclusiveMinimum`, `items` as a list) keep their old meaning.
    """

    def __init__(self, root: Any) -> None:
        self.dialect = Dialect.of(root)
        self.draft, self.declared = self.dialect.draft, self.dialect.declared
        self.subs: list[Sub] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self._resources: dict[str, Any] = {}
        self._variants: dict[tuple[int, str], int] = {}
        self._bases: dict[int, str] = {}
        """By the identity of subschemas with an identifier, which the document keeps alive."""
        self._anchors: Counter[tuple[str, Any]] = Counter()
        self._count = 0
        self._resources[""] = root
        base = self._index(root, "", "")
        self._resources.setdefault(base, root)
        self.root = self.number(root, base, "$")

    def number(self, value: Any, base: str, path: str) -> int:
        """The number of the subschema `value`; the same object always has the same one."""
        if not isinstance(value, dict | bool):
            raise ConstraintError(
                f"a schema must be an object or a boolean, not {type(value).__name__}, at {path}",
                path=path,
            )
        if isinstance(value, dict):
            base = self._base_of(value, base)
        key = (id(value), base)
        if key not in self._numbers:
            if isinstance(value, dict):
                check_shape(self.read(value), path)
            self._numbers[key] = len(self.subs)
            self.subs.append(Sub(value, base, path))
        return self._numbers[key]

    def variant(self, sub: Sub, name: str, value: dict[str, Any]) -> int:
        """The number of a changed copy of `sub`; the same one for the same `name`."""
        key = (id(sub.value), name)
        if key not in self._variants:
            # The base is that inside of `sub`: its identifier has done its part.
            plain = {name: item for name, item in value.items() if name not in {"id", "$id"}}
            # The list keeps the new object alive: its identity is its key.
            self._variants[key] = self.number(plain, sub.base, sub.path)
        return self._variants[key]

    def resolve(self, reference: Any, base: str, path: str) -> int:
        """The number of the subschema that `reference`, found at `path`, points to."""
        if not isinstance(reference, str):
            raise ConstraintError(f"$ref must be a string, at {path}", path=path, keyword="$ref")
        uri = base + reference if reference.startswith("#") else urljoin(base, reference)
        if reference.startswith("#"):
            uri = urldefrag(base).url + reference
        resource, fragment = urldefrag(uri)
        if uri in self._resources:
            return self.number(self._resources[uri], resource, path)
        if resource not in self._resources:
            self._missing(reference, path, "the document does not contain it")
        if fragment and not fragment.startswith("/"):
            self._missing(reference, path, f"there is no anchor {fragment!r}")
        found = self._pointed(resource, fragment)
        if found is None and reference.startswith("#"):
            # Written as if there were no identifier in between: no other reading is possible.
            found = self._pointed("", fragment)
        if found is None:
            self._missing(reference, path, f"there is no {fragment!r}")
        return self.number(*found, f"$#{fragment}" if fragment else "$")

    def target(self, keyword: str, reference: Any, base: str, path: str) -> int:
        """Where a reference leads; refuses one whose meaning depends on the way to it."""
        found = self.resolve(reference, base, path)
        if keyword != "$ref" and not self._is_plain(keyword, found):
            raise ConstraintError(
                f"{keyword!r} at {path} can't be enforced: what it means depends on the schemas it "
                "is reached through",
                hint="use $ref, or one $dynamicAnchor of the name",
                path=path,
                keyword=keyword,
            )
        return found

    def _is_plain(self, keyword: str, target: int) -> bool:
        """Whether a dynamic reference that first leads to subschema `target` always means it.

        It does where no other subschema could take its place: `target` is no dynamic anchor
        ($recursiveAnchor for `$recursiveRef`), or the only one of its name.
        """
        anchor = "$recursiveAnchor" if keyword == "$recursiveRef" else "$dynamicAnchor"
        value = self.subs[target].value
        name = value.get(anchor) if isinstance(value, dict) else None
        return not name or self._anchors[anchor, name] == 1

    def _pointed(self, resource: str, fragment: str) -> tuple[Any, str] | None:
        """What a JSON pointer (RFC 6901) leads to, and the base URI there."""
        value, here = self._resources[resource], resource
        for step in unquote(fragment).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and re.fullmatch("0|[1-9][0-9]*", name):
                if int(name) >= len(value):
                    return None
                value = value[int(name)]
            else:
                return None
            if isinstance(value, dict):
                here = self._base_of(value, here)
        return value, here

    def _missing(self, reference: str, path: str, why: str) -> NoReturn:
        raise ConstraintError(
            f"$ref {reference!r} at {path} can't be resolved: {why}",
            hint="put the schema it names into $defs; nothing is fetched from elsewhere",
            path=path,
            keyword="$ref",
            reference=reference,
        )

    def read(self, value: dict[str, Any]) -> dict[str, Any]:
        """The members of a subschema to which the dialect gives a meaning."""
        if self._is_reference(value):
            return {"$ref": value["$ref"]}
        return {name: item for name, item in value.items() if self.dialect.knows(name)}

    def _is_reference(self, value: dict[str, Any]) -> bool:
        """Whether `value` is a reference alone: up to draft 7 the siblings of $ref are ignored."""
        return self.draft <= 7 and "$ref" in value

    def _identifier(self, value: dict[str, Any]) -> str | None:
        if self._is_reference(value):
            return None
        found = value.get("id" if self.draft <= 4 else "$id")
        return found if isinstance(found, str) else None

    def _base_of(self, value: dict[str, Any], base: str) -> str:
        """The base URI inside of `value`, which stands where `base` is the base URI."""
        identifier = self._identifier(value)
        if identifier is None or identifier.startswith("#"):
            return base
        # Whoever comes by its identifier stands inside already.
        return self._bases.setdefault(id(value), urldefrag(urljoin(base, identifier)).url)

    def _index(self, value: Any, base: str, path: str) -> str:
        """Enter the identifiers and anchors in and below `value`; returns its own base."""
        self._count += 1
        if self._count > _MAX_SUBSCHEMAS * 4:
            raise ConstraintError(
                f"the schema has more than {_MAX_SUBSCHEMAS * 4:,} parts", hint="split it"
            )
        if isinstance(value, list):
            for item in value:
                self._index(item, base, path)
        if not isinstance(value, dict):
            return base
        identifier = self._identifier(value)
        if identifier is not None:
            if identifier.startswith("#"):
                self._resources.setdefault(base + identifier, value)
            else:
                base = self._base_of(value, base)
                self._resources.setdefault(base, value)
        self._index_anchors(value, base)
        for name, item in value.items():
            if name in _NAMED and isinstance(item, dict):
                self._index(list(item.values()), base, path)
            elif name not in _DATA:
                self._index(item, base, path)
        return base

    def _index_anchors(self, value: dict[str, Any], base: str) -> None:
        for name in ("$dynamicAnchor", "$recursiveAnchor"):
            if isinstance(value.get(name), str | bool):
                self._anchors[name, value[name]] += 1
        for name in ("$anchor", "$dynamicAnchor"):
            if isinstance(value.get(name), str):
                self._resources.setdefault(f"{base}#{value[name]}", value)
