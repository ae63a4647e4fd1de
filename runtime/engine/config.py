"""The settings of an engine: names, defaults and ranges.

What lives here: `EngineConfig`, which needs no torch: the server's settings hold one too. What does
not: defaults that depend on the machine (`runtime/embedded.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from phloem.errors import ConfigError

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    `kv_tokens` is the size of the KV pool, rounded down to pages of `page_size` tokens; None
    stands for a default that depends on the machine. A pool on a CPU takes room only as it is
    used; with `prefault` it takes all of it at the start, so that no pass waits for the system to
    give memory. `host_tokens` bounds the KV that goes to host
    memory when the device's pool has no room for it; None: a few pools on a CUDA device, and
    nothing on a CPU. It comes back by copy where `restore_from` tokens or more lie there; None:
    as many as it takes for a copy to be faster than computing them, measured at the start.
    `max_running` bounds the jobs computed together, `queue_limit` those that wait. At most
    `overtakes` jobs that arrived later are served before any job.
    `max_rows` bounds the rows of one forward pass: longer prompts are computed in chunks,
    between which running streams go on. `inter_token_ms` bounds the time such a stream waits
    between two tokens, as far as the chunks decide it: they are made as long as the engine
    computes in that time, by its own measurements. None: chunks are as long as `max_rows`
    allows. `pinned_share` bounds pinned prefixes, as a share of
    the pool. `eviction` decides which cached page goes first: by what programs tell of their next
    steps ("program"), or the least recently used ("lru"). `prefix_cache=False` keeps no KV at all
    between steps. `jump_forward=False` takes dictated tokens one by one, and `drafts=False`
    guesses no tokens ahead (the tokens are the same).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kv_tokens: int | None = None
    prefault: bool = False
    host_tokens: int | None = None
    restore_from: int | None = None
    page_size: int = 16
    max_running: int = 32
    queue_limit: int = 1024
    overtakes: int = 32
    max_rows: int = 512
    inter_token_ms: float | None = None
    pinned_share: float = 0.25
    eviction: Literal["program", "lru"] = "program"
    prefix_cache: bool = True
    jump_forward: bool = True
    drafts: bool = True

    def __post_init__(self) -> None:
        rules = [
            ("page_size", self.page_size >= 1, "1 or more"),
            (
                "kv_tokens",
                self.kv_tokens is None or self.kv_tokens >= self.page_size,
                f"at least one page of {self.page_size}",
            ),
            ("host_tokens", self.host_tokens is None or self.host_tokens >= 0, "None, 0 or more"),
            (
                "restore_from",
                self.restore_from is None or self.restore_from >= 1,
                "None, or 1 or more",
            ),
            ("max_running", self.max_running >= 1, "1 or more"),
            ("queue_limit", self.queue_limit >= 1, "1 or more"),
            ("overtakes", self.overtakes >= 0, "0 (first come, first served) or more"),
            (
                "inter_token_ms",
                self.inter_token_ms is None or self.inter_token_ms > 0,
                "None, or more than 0",
            ),
            (
                "max_rows",
                self.max_rows >= self.max_running + 2,
                f"at least max_running + 2 = {self.max_running + 2}, or prompts might starve",
            ),
            ("eviction", self.eviction in ("program", "lru"), "'program' or 'lru'"),
            ("pinned_share", 0 <= self.pinned_share <= 1, "from 0 to 1"),
        ]
        for name, holds, allowed in rules:
            if not holds:
                value = getattr(self, name)
                raise ConfigError(
                    f"{name} is {value}; it must be {allowed}", hint=f"change {name}", param=name
                )
