"""Values as plain JSON: what events show and what records keep.

What lives here: `show` (lossy, for people and traces) and `encode`/`decode` (exact, for
records, with codecs that users may register). What does not: files and journals.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

from phloem.errors import JournalError
from phloem.retrieval.base import Hit, Hits
from phloem.surrogates import spelled

__all__ = ["decode", "encode", "plain", "register_codec", "show"]

_TAG = "$type"
MAX_DEPTH = 100
"""Levels of nesting that are shown; what is in itself is shown once."""
MAX_BITS = 10_000
"""Python writes no integers of more than 4,300 digits."""
_codecs: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "hits": (Hits, Hits.to_json, Hits.from_json),
    "hit": (Hit, Hit.to_json, Hit.from_json),
    "tuple": (tuple, lambda value: [encode(item) for item in value], tuple),
    "float": (float, repr, float),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
}


def register_codec(
    name: str, kind: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> None:
    """Let records keep values of `kind`: `encode` gives JSON data, `decode` takes it back."""
    _codecs[name] = (kind, encode, decode)


def show(value: Any) -> Any:
    """`value` as JSON data for people, whatever it is: what JSON can't say is shown by its `repr`,
    and what can't be shown by its type."""
    return _show(value, ())


def _show(value: Any, above: tuple[int, ...]) -> Any:
    """`above` are the ids of what `value` is in."""
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value.value if isinstance(value, enum.Enum) else value)
    if id(value) in above or len(above) == MAX_DEPTH:
        return "..."
    inner = (*above, id(value))
    try:
        if hasattr(value, "model_dump"):
            return _show(value.model_dump(mode="json"), inner)
        if isinstance(value, Hits | Hit):
            return _show(value.to_json(), inner)
        if isinstance(value, Mapping):
            return {plain(str(key)): _show(item, inner) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [_show(item, inner) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            named = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            return {name: _show(item, inner) for name, item in named}
        return plain(repr(value))
    except Exception:  # noqa: BLE001 - code of the value's own class, which may do anything
        return f"<{type(value).__name__} that can't be shown>"


def plain(value: Any) -> Any:
    """A plain value, or what stands for it where JSON has none: infinity, half a surrogate pair,
    a number of thousands of digits."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        return spelled(value)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return f"<int of {value.bit_length()} bits>"
    return value


def encode(value: Any) -> Any:
    """`value` as JSON data that `decode` turns back into an equal value.

    Raises `JournalError`, naming the type, if neither JSON nor a codec can hold it.
    """
    if value is None or type(value) in {bool, int, str}:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [encode(item) for item in value]
    if type(value) is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: encode(item) for key, item in value.items()}
    for name, (kind, encoder, _) in _codecs.items():
        if value.__class__ is kind:
            return {_TAG: name, "value": encoder(value)}
    raise JournalError(
        f"a value of type {type(value).__name__} can't be kept in a run's record",
        hint="return JSON values from tools, or register_codec(name, type, encode, decode)",
    )


def decode(data: Any) -> Any:
    """The inverse of `encode`. Raises `JournalError` for an unknown codec."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if _TAG not in data:
        return {key: decode(item) for key, item in data.items()}
    codec = _codecs.get(data[_TAG])
    if codec is None:
        raise JournalError(
            f"the record needs the codec {data[_TAG]!r}, which is not registered",
            hint="register_codec() before reading this record",
        )
    return codec[2](decode(data["value"]))
