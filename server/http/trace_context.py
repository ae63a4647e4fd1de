"""W3C trace context: whose trace a request belongs to.

What lives here: reading and writing the `traceparent` header
(https://www.w3.org/TR/trace-context/) and the variable that holds the current request's.
What does not: spans (`telemetry`), logs.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["TraceContext", "current_trace"]

_FORM = re.compile(r"((?!ff)[0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace id, this request's span id, the caller's span id (None: no caller), the flags."""

    trace_id: str
    span_id: str
    parent_id: str | None
    flags: str = "01"

    @classmethod
    def receive(cls, header: str | None) -> TraceContext:
        """A new span in the caller's trace, or in a new trace if the header is absent or bad."""
        found = _FORM.fullmatch(header.strip()) if header else None
        # Version 00 ends after the flags; later ones may go on.
        if found and (found[5] is None or found[1] != "00"):
            trace_id, parent_id, flags = found[2], found[3], found[4]
            if set(trace_id) != {"0"} and set(parent_id) != {"0"}:
                return cls(trace_id, secrets.token_hex(8), parent_id, flags)
        return cls(secrets.token_hex(16), secrets.token_hex(8), None)

    @property
    def header(self) -> str:
        """The `traceparent` to send on: this request's span is the parent."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


current_trace: ContextVar[TraceContext | None] = ContextVar("phloem_trace", default=None)
"""The trace of the request being served, also inside the tasks it starts."""
