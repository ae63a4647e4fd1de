"""What a request asks for: the constraint to be enforced, and the text that goes before.

What lives here: reading request bodies of model servers. What does not: answers (`replies.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["constraint_of", "given_by"]

_FIELDS = {
    "regex": "regex", "guided_regex": "regex",
    "json_schema": "json_schema", "guided_json": "json_schema", "schema": "json_schema",
    "choice": "choice", "guided_choice": "choice",
    "ebnf": "grammar", "grammar": "grammar", "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}  # fmt: skip
"""Field names of phloem, vLLM, SGLang and llama.cpp, and what each holds."""
_INSIDE = ("sampling_params", "structured_outputs", "extra_body")
"""Objects that the same fields stand in."""


def constraint_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Kind and definition of the constraint that a request names, or None."""
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") not in {None, "text"}:
        inner = wanted.get("json_schema")
        definition = inner.get("schema") if isinstance(inner, Mapping) else None
        return {"kind": wanted["type"], "definition": definition}
    for place in (body, *(body.get(name) for name in _INSIDE)):
        if isinstance(place, Mapping):
            for name, kind in _FIELDS.items():
                if place.get(name):
                    return {"kind": kind, "definition": place[name]}
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools and (isinstance(choice, Mapping) or choice not in {None, "auto", "none"}):
        return {"kind": "tools", "definition": choice}
    return None


def given_by(body: Mapping[str, Any]) -> str:
    """All that a request gives the model, as one text: a request that continues another one
    begins with the other's. Empty for what is no request to a model."""
    messages = body.get("messages") or body.get("input")
    if isinstance(messages, list) and messages and isinstance(messages[0], Mapping):
        return "".join(f"{_message(message)}\n" for message in messages)
    for name in ("prompt", "text", "input_ids", "input"):
        prompt = body.get(name)
        if isinstance(prompt, str) and prompt:
            return prompt
        if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
            return "".join(f"{token}," for token in prompt)
    return ""


def _message(message: Any) -> str:
    """What makes a message the same one: its role and its text, whatever else a client adds."""
    if not isinstance(message, Mapping):
        return json.dumps(message)
    content = message.get("content")
    if isinstance(content, list):
        parts = [one.get("text") for one in content if isinstance(one, Mapping)]
        content = "".join(part for part in parts if isinstance(part, str))
    return json.dumps([message.get("role"), content])
