"""A chat API in OpenAI's shape as a `Backend`.

What lives here: `OpenAI`. What does not: sessions (`session.py`).

It is of reduced ability, and says so: no scoring of choices, no regex, no token ids, no seeds that
bind, no snapshots, and answers are whole messages. A program that needs more is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

from phloem.errors import Cancelled, ConfigError, Unsupported
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Backend, Capabilities, ChatFormat, Segment, Snapshot
from phloem.runtime.model.tokenizer import Tokenizer, byte_alphabet
from phloem.runtime.openai.dialogue import CHAT, Dialogue
from phloem.runtime.openai.request import KINDS
from phloem.runtime.openai.session import ChatServer, ChatSession
from phloem.runtime.place import Place
from phloem.runtime.remote.checking import Checker
from phloem.runtime.remote.http import HttpClient

__all__ = ["OpenAI"]

_HOME = "https://api.openai.com/v1"


class OpenAI(Backend):
    """See `programs.protocol.Backend`.

    `base_url` ends where /chat/completions begins (".../v1"; default: OpenAI's own, whose key is
    read from OPENAI_API_KEY if `api_key` is None). `timeout` bounds each step in seconds.
    `max_context` is what `capabilities` reports; the server refuses what it finds too long.
    `json_schema=False` is for servers that have no `response_format` of that type.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float | None = 600.0,
        max_context: int = 128_000,
        json_schema: bool = True,
    ) -> None:
        if base_url is None:
            api_key = api_key or os.environ.get("OPENAI_API_KEY")
            if not api_key:
                raise ConfigError(
                    "OpenAI's own API needs a key", hint="set OPENAI_API_KEY, or give api_key="
                )
        http = HttpClient(_HOME if base_url is None else base_url, api_key)
        # The newer name is required there; other servers often know only the older one.
        limit = "max_completion_tokens" if base_url is None else "max_tokens"
        tokenizer = _byte_tokenizer()
        compiler = GrammarCompiler(tokenizer.to_json(), tokenizer.vocab_size, [0])
        checker = Checker(compiler, tokenizer, "use a server and a model that keep response_format")
        self._server = ChatServer(http, model, checker, timeout, limit)
        self._closed = False
        self._capabilities = Capabilities(
            model=model,
            fingerprint=hashlib.sha256(f"openai\0{http.url}\0{model}".encode()).hexdigest(),
            max_context=max_context,
            constraints=KINDS if json_schema else frozenset(),
        )

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend`."""
        return self._capabilities

    @property
    def chat(self) -> ChatFormat:
        """See `Backend`. Its special tokens stand for the borders of messages."""
        return CHAT

    async def open(
        self,
        session_id: str,
        *,
        namespace: str = "",
        deadline: float | None = None,
        priority: int = 0,
        branch: str = "",
    ) -> ChatSession:
        """See `Backend`."""
        if self._closed:
            raise Cancelled("the backend is closed", hint="make a new one")
        place = Place(session_id, namespace, deadline, priority, branch)
        return ChatSession(self._server, Dialogue(), place)

    async def restore(
        self,
        snapshot: Snapshot,
        session_id: str,
        *,
        deadline: float | None = None,
        priority: int = 0,
    ) -> ChatSession:
        """Always raises `Unsupported`."""
        del snapshot, session_id, deadline, priority
        raise Unsupported("a chat API has no snapshots", hint="run the program again")

    def count(self, text: str) -> int:
        """Always raises `Unsupported`: the tokenizer is the server's secret."""
        del text
        raise Unsupported(
            "a chat API does not say how many tokens a text is",
            hint="leave out max_tokens= of passages, or use RuntimeEndpoint or the embedded engine",
        )

    async def prefill(self, segments: Sequence[Segment], *, namespace: str = "") -> int:
        """See `Backend`. Nothing can be kept there: 0."""
        del segments, namespace
        return 0

    async def prepare(self, constraints: Sequence[Constraint]) -> None:
        """See `Backend`."""
        for constraint in constraints:
            if constraint.kind in KINDS:
                await self._server.checker.compile(constraint)

    async def flush_cache(self) -> None:
        """See `Backend`. There is no cache to forget."""

    async def aclose(self) -> None:
        """See `Backend`."""
        self._closed = True
        await self._server.http.aclose()


def _byte_tokenizer() -> Tokenizer:
    """One token a byte, after the end's (id 0): enough to check a text against a grammar."""
    vocabulary = {"<|end|>": 0, **{char: byte + 1 for char, byte in byte_alphabet().items()}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    spec = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 0, "content": "<|end|>", "special": True, "normalized": False,
                "single_word": False, "lstrip": False, "rstrip": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    return Tokenizer(json.dumps(spec))
