"""Outcomes of steps as plain JSON, for records: there and back.

What lives here: the JSON of `StepResult` and of `ChatFormat`. What does not: the record
itself (`record.py`) or values of programs (`values.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from phloem.programs.protocol import (
    ChatFormat,
    PrefixMiss,
    Segment,
    Special,
    StepResult,
    Text,
    Timing,
    TokenLogprob,
    Usage,
)

__all__ = [
    "chat_from_json",
    "chat_to_json",
    "result_from_json",
    "result_to_json",
    "segments_from_json",
    "segments_to_json",
]


def result_to_json(result: StepResult) -> dict[str, Any]:
    """A step's result as JSON data."""
    return _plain(asdict(result))  # type: ignore[no-any-return] # a dict stays a dict


def result_from_json(data: Mapping[str, Any]) -> StepResult:
    """The inverse of `result_to_json`."""
    fields = dict(data)
    fields["tokens"] = tuple(fields["tokens"])
    fields["usage"] = Usage(**fields["usage"])
    fields["timing"] = Timing(**fields["timing"])
    fields["miss"] = PrefixMiss(**fields["miss"]) if fields["miss"] else None
    fields["logprobs"] = tuple(
        TokenLogprob(**{**item, "top": tuple(tuple(top) for top in item["top"])})
        for item in fields["logprobs"]
    )
    return StepResult(**fields)


def chat_to_json(chat: ChatFormat) -> dict[str, Any]:
    """A chat format as JSON data; a special token is {"special": …}."""
    return {
        "name": chat.name,
        "prefix": {role: segments_to_json(parts) for role, parts in chat.prefix.items()},
        "suffix": {role: segments_to_json(parts) for role, parts in chat.suffix.items()},
        "default_system": chat.default_system,
        "begin": segments_to_json(chat.begin),
    }


def chat_from_json(data: Mapping[str, Any]) -> ChatFormat:
    """The inverse of `chat_to_json`."""
    return ChatFormat(
        name=data["name"],
        prefix={role: segments_from_json(parts) for role, parts in data["prefix"].items()},
        suffix={role: segments_from_json(parts) for role, parts in data["suffix"].items()},
        default_system=data["default_system"],
        begin=segments_from_json(data["begin"]),
    )


def _plain(value: Any) -> Any:
    """JSON's own types only: tuples become lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def segments_to_json(parts: Sequence[Segment]) -> list[dict[str, Any]]:
    """Segments as JSON data; a special token is {"special": …}."""
    return [
        {"special": part.token}
        if isinstance(part, Special)
        else {"text": part.text, "heal": part.heal}
        for part in parts
    ]


def segments_from_json(parts: Sequence[Mapping[str, Any]]) -> tuple[Segment, ...]:
    """The inverse of `segments_to_json`."""
    return tuple(
        Special(part["special"]) if "special" in part else Text(part["text"], part["heal"])
        for part in parts
    )
