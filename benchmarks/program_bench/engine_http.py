"""Stateless glue: the whole text to a server at each step, as people write it by hand.

What lives here: `GlueRunner` and what vLLM, SGLang and llama.cpp's servers are sent. What does
not: the programs (`glue.py`), and starting servers (`engines.py`).
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from . import glue
from .shapes import Step
from .tally import Outputs, Tally

__all__ = ["GlueRunner", "ended", "llama_server", "sglang_server", "vllm"]

Answer = tuple[str, int, int | None, int]
"""Text, prompt tokens, how many of them were cached (None: not said), output tokens."""
Ask = Callable[["Connections", str, Step], Answer]
TIMEOUT_S = 600


class Connections:
    """POST with JSON over one kept connection a thread."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._local = threading.local()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The parsed answer. Raises `RuntimeError` for any status but 200."""
        kept = getattr(self._local, "connection", None)
        try:
            return self._send(kept or self._new(), path, body)
        except (http.client.HTTPException, ConnectionError):
            if kept is None:
                raise
            return self._send(self._new(), path, body)  # the server closed an idle connection

    def _new(self) -> http.client.HTTPConnection:
        self._local.connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        connection: http.client.HTTPConnection = self._local.connection
        return connection

    def _send(self, connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
        headers = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{path} answered {response.status}: {text[:500]!r}")
        return json.loads(text)


class TextCursor:
    """See `glue.Cursor`: nothing but a text."""

    def __init__(self, runner: GlueRunner, text: str = "") -> None:
        self._runner = runner
        self._text = text

    def append(self, text: str) -> None:
        """See `Cursor`."""
        self._text += text

    def take(self, name: str, step: Step) -> str:
        """See `Cursor`."""
        said = self._runner.ask(name, self._text, step)
        self._text += said
        return said

    def copy(self) -> TextCursor:
        """See `Cursor`."""
        return TextCursor(self._runner, self._text)


class GlueRunner:
    """See `tally.Runner` and `glue.Engine`. Programs and branches run on threads."""

    def __init__(self, url: str, ask: Ask, about: dict[str, Any]) -> None:
        self._connections = Connections(url)
        self._ask = ask
        self._about = about
        self._tally = Tally()
        # Each branch keeps its connection: branches are at most five in each of 32 programs.
        self._branches = ThreadPoolExecutor(160)
        self._programs = ThreadPoolExecutor(32)

    def info(self) -> dict[str, Any]:
        """See `Runner`."""
        return self._about

    def prepare(self, shape: str, shared: str) -> None:
        """See `Runner`."""
        self._shape, self._shared = shape, shared

    def one(self, row: dict[str, Any]) -> Outputs:
        """See `Runner`."""
        return glue.run(self, self._shape, self._shared, row)

    def many(self, rows: list[dict[str, Any]], at_once: int) -> list[Outputs]:
        """See `Runner`."""
        gate = threading.Semaphore(at_once)

        def gated(row: dict[str, Any]) -> Outputs:
            with gate:
                return self.one(row)

        return list(self._programs.map(gated, rows))

    def tally(self) -> Tally:
        """See `Runner`."""
        found, self._tally = self._tally, Tally()
        return found

    def open(self) -> TextCursor:
        """See `glue.Engine`."""
        return TextCursor(self)

    def together(self, tasks: Sequence[Callable[[], Outputs]]) -> list[Outputs]:
        """See `glue.Engine`."""
        return [future.result() for future in [self._branches.submit(task) for task in tasks]]

    def generate(self, prompts: list[list[int]], tokens: int) -> tuple[int, int]:
        """See `tally.TokenRunner`. By OpenAI's completions endpoint, a request for each prompt."""

        def one(prompt: list[int]) -> tuple[int, int]:
            body = {"model": "m", "prompt": prompt, "max_tokens": tokens}
            answer = self._connections.post(
                "/v1/completions", {**body, "temperature": 0, "ignore_eos": True}
            )
            usage = answer["usage"]
            details = usage.get("prompt_tokens_details") or {}
            return usage["completion_tokens"], details.get("cached_tokens") or 0

        counts = list(self._programs.map(one, prompts))
        return sum(count for count, _ in counts), sum(cached for _, cached in counts)

    def ask(self, name: str, text: str, step: Step) -> str:
        """One request."""
        said, prompt, cached, generated = self._ask(self._connections, text, step)
        self._tally.call(name, prompt, cached, generated)
        return said


def vllm(connections: Connections, text: str, step: Step) -> Answer:
    """vLLM's completions endpoint."""
    body: dict[str, Any] = {
        "model": "m",
        "prompt": text,
        "max_tokens": step.tokens,
        "temperature": 0,
    }
    if step.free:
        body |= {"ignore_eos": True, "min_tokens": step.tokens}
    elif step.choices:
        body["structured_outputs"] = {"choice": list(step.choices)}
    else:
        body["structured_outputs"] = {"regex": step.pattern}
    answer = connections.post("/v1/completions", body)
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    choice = answer["choices"][0]
    # The end of a text counts among its tokens there, and is none of the text's.
    generated = usage["completion_tokens"] - (choice["finish_reason"] == "stop")
    return choice["text"], usage["prompt_tokens"], cached, generated


def sglang_server(connections: Connections, text: str, step: Step) -> Answer:
    """SGLang's native endpoint."""
    sampling: dict[str, Any] = {"max_new_tokens": step.tokens, "temperature": 0}
    if step.free:
        sampling["ignore_eos"] = True
    else:
        sampling["regex"] = f"({'|'.join(step.choices)})" if step.choices else step.pattern
    answer = connections.post("/generate", {"text": text, "sampling_params": sampling})
    meta = answer["meta_info"]
    generated = meta["completion_tokens"] - ended(meta)
    return answer["text"], meta["prompt_tokens"], meta["cached_tokens"], generated


def ended(meta: dict[str, Any]) -> bool:
    """Whether the last token that SGLang counts is the end of the text."""
    reason = meta.get("finish_reason") or {}
    return reason.get("type") == "stop" and isinstance(reason.get("matched"), int)


def llama_server(connections: Connections, text: str, step: Step) -> Answer:
    """The endpoint of llama.cpp's own server."""
    body: dict[str, Any] = {
        "prompt": text,
        "n_predict": step.tokens,
        "temperature": 0,
        "cache_prompt": True,
        "ignore_eos": step.free,
    }
    if step.choices:
        body["grammar"] = "root ::= " + " | ".join(json.dumps(choice) for choice in step.choices)
    elif step.gbnf:
        body["grammar"] = step.gbnf
    answer = connections.post("/completion", body)
    prompt, prefilled = answer["tokens_evaluated"], answer["timings"]["prompt_n"]
    return answer["content"], prompt, prompt - prefilled, answer["tokens_predicted"]
