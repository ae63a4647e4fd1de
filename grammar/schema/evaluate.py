"""A validator: whether a JSON value satisfies a subschema, by the document's dialect.

What lives here: evaluation of values that are known before generation (members of `enum`,
property names) and of finished texts. What does not: grammars. Formats and patterns mean exactly
what they mean in the grammar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phloem.errors import ConstraintError
from phloem.grammar.schema.document import Document, Sub
from phloem.grammar.schema.strings import matches_format, matches_pattern
from phloem.grammar.schema.unevaluated import Condition, alternatives
from phloem.grammar.schema.values import (
    exact,
    is_number,
    key_of,
    lower_bound,
    type_of,
    upper_bound,
)

__all__ = ["Evaluator"]


class Evaluator:
    """Validates values against the subschemas of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._read: dict[int, Sub] = {}
        self._literal_keys: dict[int, frozenset[str]] = {}

    def valid(self, number: int, value: Any) -> bool:
        """Whether `value` satisfies subschema `number`."""
        sub = self._document.subs[number]
        if isinstance(sub.value, bool):
            return sub.value
        if number not in self._read:
            self._read[number] = replace(sub, value=self._document.read(sub.value))
        sub = self._read[number]
        return all(
            check(self, sub, value)
            for check, names in _CHECKS.items()
            if not names.isdisjoint(sub.value)
        )

    def _sub(self, sub: Sub, schema: Any, value: Any) -> bool:
        return self.valid(self._document.number(schema, sub.base, sub.path), value)

    def _ref(self, sub: Sub, value: Any) -> bool:
        return all(
            self.valid(self._document.target(name, sub.value[name], sub.base, sub.path), value)
            for name in _REFERENCES
            if name in sub.value
        )

    def _type(self, sub: Sub, value: Any) -> bool:
        names = sub.value["type"]
        kind = type_of(value)
        if kind == "integer" and isinstance(value, float) and self._document.draft == 4:
            kind = "fraction"
        kinds = {kind, "number"} if kind in {"integer", "fraction"} else {kind}
        return not kinds.isdisjoint([names] if isinstance(names, str) else names)

    def _numbers(self, sub: Sub, value: Any) -> bool:
        if not is_number(value):
            return True
        number, schema = exact(value), sub.value
        low, low_open = lower_bound(schema)
        high, high_open = upper_bound(schema)
        return (
            (low is None or number > low or (number == low and not low_open))
            and (high is None or number < high or (number == high and not high_open))
            and ("multipleOf" not in schema or number % exact(schema["multipleOf"]) == 0)
        )

    def _strings(self, sub: Sub, value: Any) -> bool:
        if not isinstance(value, str):
            return True
        schema = sub.value
        return (
            schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
            and ("pattern" not in schema or matches_pattern(schema["pattern"], value))
            and ("format" not in schema or matches_format(self._document, schema["format"], value))
        )

    def _arrays(self, sub: Sub, value: Any) -> bool:
        if not isinstance(value, list):
            return True
        schema = sub.value
        prefix = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        if isinstance(rest, list):
            prefix, rest = rest, schema.get("additionalItems", True)
        found = sum(1 for item in value if self._sub(sub, schema.get("contains", False), item))
        least = schema.get("minContains", 1) if "contains" in schema else 0
        return (
            schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
            and all(self._sub(sub, s, v) for s, v in zip(prefix, value, strict=False))
            and all(self._sub(sub, rest, item) for item in value[len(prefix) :])
            and least <= found <= schema.get("maxContains", found)
            and not (
                schema.get("uniqueItems") is True and len(set(map(key_of, value))) < len(value)
            )
        )

    def _objects(self, sub: Sub, value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        schema = sub.value
        required = schema.get("required", [])
        return (
            schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value))
            and all(name in value for name in required)
            and all(self._member(sub, name, item) for name, item in value.items())
            and all(
                self._sub(sub, schema["propertyNames"], name)
                for name in (value if "propertyNames" in schema else ())
            )
            and self._dependencies(sub, value)
        )

    def _member(self, sub: Sub, name: str, item: Any) -> bool:
        schema = sub.value
        found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
        found += [
            inner
            for pattern, inner in schema.get("patternProperties", {}).items()
            if matches_pattern(pattern, name)
        ]
        if not found and "additionalProperties" in schema:
            found = [schema["additionalProperties"]]
        return all(self._sub(sub, inner, item) for inner in found)

    def _dependencies(self, sub: Sub, value: dict[str, Any]) -> bool:
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in sub.value.get(keyword, {}).items():
                if name not in value:
                    continue
                if isinstance(needed, str | list):
                    if not set([needed] if isinstance(needed, str) else needed) <= set(value):
                        return False
                elif not self._sub(sub, needed, value):
                    return False
        return True

    def _unevaluated(self, sub: Sub, value: Any) -> bool:
        return all(
            self._rest(sub, keyword, value)
            for keyword, kind in (("unevaluatedProperties", dict), ("unevaluatedItems", list))
            if keyword in sub.value and isinstance(value, kind)
        )

    def _rest(self, sub: Sub, keyword: str, value: Any) -> bool:
        """Whether in some alternative what is not evaluated keeps to the schema.

        Raises `ConstraintError` where it can't be told what is evaluated.
        """
        schema = sub.value[keyword]
        ways = alternatives(self._document, sub, sub.value, keyword)
        if ways is None or (isinstance(value, list) and not all(s.certain for _, s in ways)):
            raise ConstraintError(
                f"{keyword!r} at {sub.path} can't be enforced here: what is left for it depends on "
                "'contains', or on too many branches",
                hint="state it by properties or items, required and anyOf",
                path=sub.path,
                keyword=keyword,
            )
        for conditions, seen in ways:
            if not all(self._holds(condition, value) for condition in conditions):
                continue
            if isinstance(value, list):
                rest = [] if seen.every_item else value[seen.items :]
            else:
                names = [] if seen.every_member else [n for n in value if n not in seen.names]
                rest = [
                    value[name]
                    for name in names
                    if not any(matches_pattern(pattern, name) for pattern in seen.patterns)
                ]
            if all(self._sub(sub, schema, item) for item in rest):
                return True
        return False

    def _holds(self, condition: Condition, value: Any) -> bool:
        if isinstance(condition, str):
            return isinstance(value, dict) and condition in value
        holds, number = condition
        return self.valid(number, value) is holds

    def _combined(self, sub: Sub, value: Any) -> bool:
        schema = sub.value
        if "if" in schema:
            branch = "then" if self._sub(sub, schema["if"], value) else "else"
            if not self._sub(sub, schema.get(branch, True), value):
                return False
        return (
            all(self._sub(sub, inner, value) for inner in schema.get("allOf", []))
            and any(self._sub(sub, inner, value) for inner in schema.get("anyOf", [True]))
            and sum(self._sub(sub, inner, value) for inner in schema.get("oneOf", [True])) == 1
            and not self._sub(sub, schema.get("not", False), value)
        )

    def _literals(self, sub: Sub, value: Any) -> bool:
        schema, key = sub.value, key_of(value)
        if "const" in schema and key_of(schema["const"]) != key:
            return False
        if "enum" not in schema:
            return True
        # What was read is kept, so its identity is a safe key.
        if id(schema) not in self._literal_keys:
            self._literal_keys[id(schema)] = frozenset(map(key_of, schema["enum"]))
        return key in self._literal_keys[id(schema)]


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_Check = Callable[[Evaluator, Sub, Any], bool]
_CHECKS: dict[_Check, set[str]] = {
    Evaluator._ref: set(_REFERENCES),
    Evaluator._type: {"type"},
    Evaluator._literals: {"enum", "const"},
    Evaluator._numbers: {
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    },
    Evaluator._strings: {"minLength", "maxLength", "pattern", "format"},
    Evaluator._arrays: {
        "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains",
    },
    Evaluator._objects: {
        "properties", "patternProperties", "additionalProperties", "required", "minProperties",
        "maxProperties", "propertyNames", "dependencies", "dependentRequired",
        "dependentSchemas",
    },
    Evaluator._combined: {"allOf", "anyOf", "oneOf", "not", "if"},
    Evaluator._unevaluated: {"unevaluatedProperties", "unevaluatedItems"},
}  # fmt: skip
