"""What chat and completion replies share: usage, ids, names of finish reasons.

What lives here: the usage models and small conversions. What does not: the replies.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from phloem.programs.protocol import StepResult, Usage
from phloem.server.error_map import error_object
from phloem.server.generation.run import total_usage
from phloem.server.http.sse import event

__all__ = [
    "DONE",
    "FinishReason",
    "UsageReply",
    "error_events",
    "finish",
    "new_id",
    "usage_of",
    "usage_reply",
]

FinishReason = Literal["stop", "length", "tool_calls"]

DONE = event("[DONE]")


class PromptDetails(BaseModel):
    """Of the prompt tokens, those whose KV was there already."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Of the output tokens, those that the constraint dictated (an extension)."""

    reasoning_tokens: int = 0
    forced_tokens: int = 0


class UsageReply(BaseModel):
    """Token counts: prompt + completion = total."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage_reply(results: Mapping[int, StepResult], n: int) -> UsageReply:
    """The usage of all candidates together; a prompt that `n` of them share counts once."""
    return usage_of(total_usage(results, n))


def usage_of(usage: Usage) -> UsageReply:
    """The same of a sum that is known."""
    return UsageReply(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.generated,
        total_tokens=usage.prompt + usage.generated,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.reused),
        completion_tokens_details=CompletionDetails(forced_tokens=usage.forced),
    )


def finish(result: StepResult) -> Literal["stop", "length"]:
    """OpenAI's word for how a step ended."""
    return "length" if result.finish_reason == "length" else "stop"


def new_id(prefix: str) -> str:
    """A fresh id of a reply."""
    return f"{prefix}-{secrets.token_hex(12)}"


def error_events(error: Exception) -> list[bytes]:
    """The end of a stream that failed: the error object, then the usual last event."""
    return [event(json.dumps(error_object(error))), DONE]
