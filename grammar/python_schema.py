"""The JSON Schema of a Python type that holds what the type itself will accept.

What lives here: `json_schema_of`, pydantic's generator with what it leaves out: the names of a
`dict` with typed keys, decimals, UUID versions, times with and without a zone, URL schemes. What
does not: which constraint a type stands for (python_types.py).

Pydantic's own schema describes a type to people and lets texts through that the type then
refuses. Here a text of the schema is a value of the type, and what JSON Schema can't say of a
type is refused with its place. Validators written in Python are the exception: nobody sees into
them, so they judge the finished text.
"""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaValidator, core_schema, to_jsonable_python

from phloem.errors import ConstraintError
from phloem.grammar.python_formats import (
    AWARE,
    DURATION,
    INTEGER_KEY,
    LOCAL,
    NUMBER_KEY,
    PATTERNS,
    UNTESTABLE,
    WEB,
    decimal_text,
    url_text,
)
from phloem.grammar.schema.formats import FORMATS

__all__ = ["json_schema_of"]

_REFUSED = "x-phloem-refused"
"""Marks what can't be said: its value is the reason. `_settled` turns it into an error."""
_BYTES = "x-phloem-bytes"
_BOUNDS = ("gt", "ge", "lt", "le", "now_op")
_MAX_KEYS = 1_000
_DIGITS = 18


def json_schema_of(adapter: TypeAdapter[Any]) -> Any:
    """The schema. Objects are closed: only `extra="allow"` lets a text hold members the type
    does not name. Raises `ConstraintError` naming what can't be held, and pydantic's own errors
    for what it can't describe at all."""
    return _settled(adapter.json_schema(schema_generator=_Generator), "$")


class _Generator(GenerateJsonSchema):
    # Members that a type would ignore carry nothing, and a small model writes them without end.
    def model_schema(self, schema: Any) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def model_field_schema(self, schema: Any) -> JsonSchemaValue:
        return _unless_deep(schema, super().model_field_schema(schema))

    def dataclass_field_schema(self, schema: Any) -> JsonSchemaValue:
        return _unless_deep(schema, super().dataclass_field_schema(schema))

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        return self._dict(schema, super().dict_schema(schema))

    def ordered_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return self._dict(schema, super().ordered_dict_schema(schema))

    def counter_schema(self, schema: Any) -> JsonSchemaValue:
        return self._dict(schema, super().counter_schema(schema))

    def _dict(self, schema: Any, made: JsonSchemaValue) -> JsonSchemaValue:
        keys = schema.get("keys_schema")
        names = None if keys is None else self._names(keys, self.generate_inner(keys))
        # For keys with a pattern pydantic speaks of the names that match, not of the others.
        if "patternProperties" in made:
            (made["additionalProperties"],) = made.pop("patternProperties").values()
        made.pop("propertyNames", None)
        if names is not None:
            made["propertyNames"] = names
        return made

    def _names(self, core: Any, keys: JsonSchemaValue) -> JsonSchemaValue | None:
        """The names whose texts are the keys; None if every text is one."""
        keys = self.resolve_ref_schema(keys)
        if _REFUSED in keys or keys.get("type") == "string":
            return keys if len(keys) > 1 else None
        values = [keys["const"]] if "const" in keys else keys.get("enum")
        whole = keys.get("type") == "integer"
        if keys.get("type") == "boolean":
            values = [False, True]
        elif values is None and whole and "minimum" in keys and "maximum" in keys:
            span = range(keys["minimum"], keys["maximum"] + 1)
            values = list(span) if len(span) <= _MAX_KEYS else None
        if values is not None:
            texts = [v if isinstance(v, str) else json.dumps(v) for v in values]
            taken = core_schema.dict_schema(core)
            return _some([t for t in texts if _reads(taken, json.dumps({t: None}))], "its keys")
        for union in ("anyOf", "oneOf"):
            if union in keys:
                parts = [self._names(core, part) for part in keys[union]]
                return None if None in parts else {"anyOf": parts}
        if keys.get("type") in {"integer", "number"}:
            return _numeral(keys, INTEGER_KEY if whole else NUMBER_KEY)
        return _refused("keys of this type") if keys.keys() - {"title", "description"} else None

    def literal_schema(self, schema: Any) -> JsonSchemaValue:
        return self._readable(schema, schema["expected"], super().literal_schema(schema))

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        values = [member.value for member in schema["members"]]
        return self._readable(schema, values, super().enum_schema(schema))

    def _readable(self, core: Any, values: list[Any], made: JsonSchemaValue) -> JsonSchemaValue:
        """`made` without the values that are not read back from JSON (bytes, tuples)."""
        written = [to_jsonable_python(value) for value in values]
        kept = [value for value in written if _reads(core, json.dumps(value))]
        if len(kept) == len(written):
            return made
        return _some(kept, "these values")

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().decimal_schema(schema)
        number, text = made["anyOf"]
        whole, places = schema.get("max_digits"), schema.get("decimal_places")
        if any(schema.get(name) is not None for name in (*_BOUNDS, "multiple_of")):
            # Bounds hold of numbers only, and then so must the digits.
            return {"allOf": [number, _digits(whole, places)]}
        text["pattern"] = decimal_text(whole, places)
        return made if whole is None and places is None else cast("JsonSchemaValue", text)

    def fraction_schema(self, schema: Any) -> JsonSchemaValue:
        number, text = super().fraction_schema(schema)["anyOf"]
        bounded = any(schema.get(name) is not None for name in _BOUNDS)
        return cast("JsonSchemaValue", number if bounded else text)

    def complex_schema(self, schema: Any) -> JsonSchemaValue:
        return {**super().complex_schema(schema), "format": "complex"}

    def bytes_schema(self, schema: Any) -> JsonSchemaValue:
        return {**super().bytes_schema(schema), _BYTES: True}

    def date_schema(self, schema: Any) -> JsonSchemaValue:
        return _temporal(schema, super().date_schema(schema), None)

    def time_schema(self, schema: Any) -> JsonSchemaValue:
        return _temporal(schema, super().time_schema(schema), "")

    def datetime_schema(self, schema: Any) -> JsonSchemaValue:
        return _temporal(schema, super().datetime_schema(schema), f"{FORMATS['date']}T")

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        made = _temporal(schema, super().timedelta_schema(schema), None)
        if made.get("format") == "duration":
            return {"type": "string", "pattern": _whole(DURATION)}
        return made

    def url_schema(self, schema: Any) -> JsonSchemaValue:
        return self._url(schema, super().url_schema(schema))

    def multi_host_url_schema(self, schema: Any) -> JsonSchemaValue:
        return self._url(schema, super().multi_host_url_schema(schema))

    def _url(self, schema: Any, made: JsonSchemaValue) -> JsonSchemaValue:
        schemes = schema.get("allowed_schemes")
        if schemes is None:
            # What begins like the web's own URLs has to be one.
            others = f"(?!(?:{'|'.join(WEB)}):)[A-Za-z][^]*"
            return {**made, "format": "uri", "pattern": _whole(f"{url_text(WEB)}|{others}")}
        return {**made, "format": "url", "pattern": _whole(url_text(schemes))}

    def json_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ARG002 - pydantic's signature
        return _refused("JSON inside of a string")

    def is_subclass_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ARG002
        return _refused("a class")


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    # A root model has the schema of what it wraps, which need not be an object.
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _unless_deep(field: Any, made: JsonSchemaValue) -> JsonSchemaValue:
    alias = field.get("validation_alias")
    if isinstance(alias, list):
        # One path, or the choices among several.
        paths = alias if all(isinstance(path, list) for path in alias) else [alias]
        if all(len(path) > 1 for path in paths):
            return _refused("a field whose alias is a path")
    return made


def _temporal(core: Any, made: JsonSchemaValue, date: str | None) -> JsonSchemaValue:
    """A date or time; with `date`, the pattern before the clock, also a zone as `core` says."""
    if any(core.get(name) is not None for name in _BOUNDS):
        return _refused("a bound on dates and times")
    if date is None or made.get("type") != "string":
        return made
    wanted = core.get("tz_constraint")
    if isinstance(wanted, int):
        return _refused("one time zone")
    zone = {"aware": AWARE, "naive": ""}.get(wanted, f"{AWARE}?")
    return {"type": "string", "pattern": _whole(date + LOCAL + zone)}


def _numeral(keys: JsonSchemaValue, pattern: str) -> JsonSchemaValue:
    """The texts of numbers; of bounds, those that are told by the sign."""
    bounds = {name: keys[name] for name in keys if "imum" in name or name == "multipleOf"}
    if bounds in ({"minimum": 0}, {"exclusiveMinimum": -1}):
        return {"pattern": _whole(pattern.removeprefix("-?"))}
    if bounds in ({"minimum": 1}, {"exclusiveMinimum": 0}) and keys["type"] == "integer":
        return {"pattern": _whole(f"[1-9][0-9]{{0,{_DIGITS - 1}}}")}
    return _refused("such bounds on keys") if bounds else {"pattern": _whole(pattern)}


def _digits(whole: int | None, places: int | None) -> JsonSchemaValue:
    """Numbers with at most `whole` digits, of which `places` are behind the point."""
    if whole is None:
        return {} if places is None else {"multipleOf": 10.0**-places}
    # Digits that may stand on either side of the point are left to the one before it.
    step = 10.0 ** -(places or 0)
    most = 10 ** max(whole - (places or 0), 0) - step
    return {"multipleOf": step, "minimum": -most, "maximum": most}


def _some(values: list[Any], what: str) -> JsonSchemaValue:
    return {"enum": values} if values else _refused(f"{what} (no JSON text is read as one)")


def _reads(core: Any, text: str) -> bool:
    try:
        SchemaValidator(core).validate_json(text)
    except ValidationError:
        return False
    return True


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _refused(what: str) -> JsonSchemaValue:
    return {_REFUSED: what}


def _settled(schema: Any, path: str) -> Any:
    """`schema` with patterns for pydantic's formats. Raises `ConstraintError` at a mark."""
    if isinstance(schema, list):
        return [_settled(item, f"{path}.{index}") for index, item in enumerate(schema)]
    if not isinstance(schema, Mapping):
        return schema
    form = str(schema.get("format"))
    reason = schema.get(_REFUSED) or UNTESTABLE.get(form)
    if reason is not None:
        raise ConstraintError(
            f"{reason} can't be held by a JSON Schema, at {path}",
            hint="use a plain type there (str, datetime, ...) and check the value afterwards",
            path=path,
        )
    if form == "zoneinfo":
        return {"enum": sorted(zoneinfo.available_timezones())}
    made: dict[str, Any] = {}
    for name, value in schema.items():
        here = f"{path}.{name}"
        if name in {"properties", "$defs"}:
            made[name] = {key: _settled(item, f"{here}.{key}") for key, item in value.items()}
        elif name not in {"default", "examples", "enum", "const", _BYTES}:
            made[name] = _settled(value, here)
        elif name != _BYTES:
            made[name] = value
    pattern = PATTERNS.get(f"{form} bytes" if _BYTES in schema else form)
    if pattern is not None:
        made["pattern"] = _whole(pattern)
        made.pop("format")
    return made
