"""Prompts told back, with the log-probabilities of their tokens where asked.

What lives here: `Echo` and `tell_back`, which runs on the engine's loop. What does not: output
(`job.py`), and how an echo looks in a reply (`openai/completion_models.py`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from phloem.errors import ConfigError, PromptTooLong, Unsupported
from phloem.programs.protocol import Backend, ScoredChoice, Snapshot, Usage
from phloem.runtime.token_backend import TokenBackend
from phloem.server.generation.job import Job, Prompt, Tokens, about_prompt, spelled

__all__ = ["Echo", "PromptToken", "tell_back"]


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of a prompt. The first has no log-probability: nothing is before it. `best` is the
    likeliest token at its place."""

    text: str
    logprob: float | None = None
    best: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt's text, and its tokens, if they were asked for. `usage` is what that took."""

    text: str
    tokens: tuple[PromptToken, ...] = ()
    usage: Usage = Usage()


async def tell_back(backend: Backend, job: Job, *, scored: bool) -> list[Echo]:
    """The echo of each prompt of `job`.

    Raises `Unsupported` for an engine that can't score or spell tokens, and `PromptTooLong`.
    """
    if not isinstance(backend, TokenBackend):
        raise Unsupported("this engine tells no prompts back", param="echo")
    if scored and not backend.capabilities.score:
        raise Unsupported("this engine can't score prompts", param="logprobs")
    return [await _echo(backend, job, prompt, scored) for prompt in job.prompts]


async def _echo(backend: TokenBackend[Any], job: Job, prompt: Prompt, scored: bool) -> Echo:
    ids = await _ids(backend, job, prompt)
    if not ids:
        raise ConfigError("the prompt is empty", hint="send at least one character", param="prompt")
    limit = backend.capabilities.max_context
    if len(ids) > limit:
        raise PromptTooLong(
            f"the prompt is {len(ids)} tokens, but the context holds {limit}",
            hint=f"shorten the prompt to at most {limit} tokens",
            param="prompt",
            prompt_tokens=len(ids),
            limit=limit,
        )
    text = backend.decode(ids) if isinstance(prompt, Tokens) else spelled(prompt)
    if not scored:
        return Echo(text, usage=Usage(prompt=len(ids)))
    return await _scored(backend, job, text, ids)


async def _scored(backend: TokenBackend[Any], job: Job, text: str, ids: tuple[int, ...]) -> Echo:
    first, rest = ids[:1], ids[1:]
    tokens = [PromptToken(backend.decode(first))]
    usage = Usage(prompt=len(ids), prefilled=len(ids))
    if rest:
        snapshot = Snapshot(backend.capabilities.fingerprint, first, namespace=job.namespace)
        session = await backend.restore(
            snapshot, _name(), deadline=job.deadline, priority=job.priority
        )
        try:
            found = await session.score([rest])
        finally:
            await session.close()
        tokens += _tokens(backend, found.choices[0])
        usage = replace(usage, scored=found.usage.scored)
    return Echo(text, tuple(tokens), usage)


def _tokens(backend: TokenBackend[Any], choice: ScoredChoice) -> list[PromptToken]:
    best = [(_spelt(backend, token), logprob) for token, logprob in choice.best]
    return [PromptToken(*one) for one in zip(choice.pieces, choice.logprobs, best, strict=True)]


def _spelt(backend: TokenBackend[Any], token: int) -> str:
    """The text of a token. Ids that only fill the model's table up have none."""
    try:
        return backend.decode([token])
    except Unsupported:
        return ""


async def _ids(backend: TokenBackend[Any], job: Job, prompt: Prompt) -> tuple[int, ...]:
    """The tokens that a session with this prompt begins with."""
    if isinstance(prompt, Tokens):
        with about_prompt(job):
            backend.decode(prompt.ids)
        return prompt.ids
    session = await backend.open(_name(), namespace=job.namespace)
    try:
        opening = (await session.snapshot()).tokens
    finally:
        await session.close()
    return (*opening, *backend.encode(spelled(prompt)))


def _name() -> str:
    return f"echo-{uuid.uuid4().hex[:12]}"
