"""What an SGLang server says of itself when we connect.

What lives here: `ServerInfo` and which versions are supported. What does not: the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.errors import EngineError

__all__ = ["SUPPORTED", "ServerInfo", "read_info"]

SUPPORTED = ((0, 5, 4), (0, 6, 0))
"""From the first, up to but without the second."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """`max_context` is in tokens; `incremental`: streams send each token once, not all so far."""

    version: str
    model: str
    tokenizer: str
    weights: str
    max_context: int
    grammars: bool
    seeds: bool
    priorities: bool
    incremental: bool


def read_info(url: str, model: Mapping[str, Any], server: Mapping[str, Any]) -> ServerInfo:
    """From the replies of /get_model_info and /get_server_info.

    Raises `EngineError` for another product, or a version that is not supported.
    """
    version = str(server.get("version", ""))
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        raise EngineError(
            f"{url} is no SGLang server: it reports no version",
            hint="phloem's own server and others are reached with OpenAI(model, base_url=...)",
        )
    low, high = SUPPORTED
    if not low <= tuple(map(int, numbers.groups())) < high:
        first, end = (".".join(map(str, bound)) for bound in SUPPORTED)
        raise EngineError(
            f"{url} runs SGLang {version}", hint=f"use a version from {first} on, before {end}"
        )
    sizes = ("max_req_input_len", "context_length", "max_total_num_tokens")
    size = next((server[name] for name in sizes if server.get(name)), None)
    if size is None:
        raise EngineError(f"{url} does not report its context length", hint="set --context-length")
    path = str(model["model_path"])
    return ServerInfo(
        version=version,
        model=path,
        tokenizer=str(model.get("tokenizer_path") or path),
        weights=str(model.get("weight_version", "")),
        max_context=int(size),
        grammars=server.get("grammar_backend") != "none",
        # Elsewhere the server takes a seed and pays no heed to it.
        seeds=bool(server.get("enable_deterministic_inference")),
        priorities=bool(server.get("enable_priority_scheduling")),
        incremental=bool(server.get("incremental_streaming_output") or server.get("stream_output")),
    )
