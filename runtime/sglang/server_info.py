"""What an SGLang server says of itself when we connect.

What lives here: `ServerInfo` and which versions are supported. What does not: the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.errors import EngineError

__all__ = ["SUPPORTED", "ServerInfo", "identity", "read_info"]

SUPPORTED = ((0, 5, 4), (0, 6, 0))
"""SGLang from the first, up to but without the second."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """`max_context` is in tokens; `incremental`: streams send each token once, not all so far.

    `grammar` is the grammar backend ("none" if there is none), `product` "SGLang" or "phloem".
    `memory` is what the server tells of its KV pool, for people.
    """

    product: str
    version: str
    model: str
    tokenizer: str
    max_context: int
    grammar: str
    seeds: bool
    priorities: bool
    incremental: bool
    memory: str

    identity: str
    """Equal for servers between which a session can move."""


def identity(model: Any) -> str:
    """What a server serves, by its reply to /get_model_info. Raises `EngineError` if it is none."""
    if not isinstance(model, Mapping) or not isinstance(model.get("model_path"), str):
        raise EngineError(
            f"a model server tells its model_path, not {str(model)[:200]!r}",
            hint="is this the address of an SGLang server?",
        )
    return f"{model['model_path']}\0{model.get('fingerprint') or model.get('weight_version', '')}"


def read_info(url: str, model: Any, server: Any) -> ServerInfo:
    """From the replies of /get_model_info and /get_server_info.

    Raises `EngineError` for another product, or a version that is not supported.
    """
    found = identity(model)
    product, version = _version(url, server if isinstance(server, Mapping) else {})
    sizes = ("max_req_input_len", "context_length", "max_total_num_tokens")
    size = next((server[name] for name in sizes if server.get(name)), None)
    if type(size) is not int:
        raise EngineError(f"{url} does not report its context length", hint="set --context-length")
    path = model["model_path"]
    return ServerInfo(
        product=product,
        version=version,
        model=path,
        tokenizer=str(model.get("tokenizer_path") or path),
        max_context=size,
        grammar="phloem" if product == "phloem" else str(server.get("grammar_backend") or "none"),
        # Elsewhere the server takes a seed and pays no heed to it.
        seeds=bool(server.get("enable_deterministic_inference")),
        priorities=bool(server.get("enable_priority_scheduling")),
        incremental=bool(server.get("incremental_streaming_output") or server.get("stream_output")),
        memory=_memory(server),
        identity=found,
    )


def _version(url: str, server: Mapping[str, Any]) -> tuple[str, str]:
    product, version = str(server.get("product", "SGLang")), str(server.get("version", ""))
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None or product not in {"SGLang", "phloem"}:
        raise EngineError(
            f"{url} is no SGLang server: it reports no version",
            hint="other servers are reached with OpenAI(model, base_url=...)",
        )
    low, high = SUPPORTED
    if product == "SGLang" and not low <= tuple(map(int, numbers.groups())) < high:
        first, end = (".".join(map(str, bound)) for bound in SUPPORTED)
        raise EngineError(
            f"{url} runs SGLang {version}", hint=f"use a version from {first} on, before {end}"
        )
    return product, version


def _memory(server: Mapping[str, Any]) -> str:
    names = {
        "max_total_num_tokens": "tokens of KV",
        "mem_fraction_static": "of the memory",
        "max_running_requests": "requests at once",
        "tp_size": "tensor parallel",
    }
    return ", ".join(f"{server[name]} {what}" for name, what in names.items() if server.get(name))
