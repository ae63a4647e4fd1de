"""POST /generate without output: prompts prefilled, or scored for clients that choose themselves.

What lives here: the detours over `Session.score`, for texts and for token ids, and their replies.
What does not: phloem's own `select`, which scores choices without repeating their prefix.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from phloem.errors import ConfigError, Unsupported
from phloem.programs.protocol import Backend, ScoredChoice, Snapshot, Text, Usage
from phloem.server.sglang.models import FinishReason, GenerateReply, GenerateRequest, MetaInfo

__all__ = ["score_prompts"]


async def score_prompts(
    backend: Backend, body: GenerateRequest, namespace: str
) -> list[GenerateReply]:
    """Prefill only: no output, but the prompt's log-probabilities where asked."""
    if body.rows:
        starts = body.starts if body.return_logprob else [len(row) - 1 for row in body.rows]
        asked = body.asked if body.return_logprob else [[] for _ in body.rows]
        scored = await _score_rows(backend, body.rows, starts, asked, namespace)
        return [
            _scored(body, row[at], ids, *one)
            for row, at, ids, one in zip(body.rows, starts, asked, scored, strict=True)
        ]
    if body.token_ids_logprob:
        raise ConfigError("give the prompt as input_ids", param="token_ids_logprob")
    if not body.return_logprob:
        counts = [await backend.prefill([Text(text)], namespace=namespace) for text in body.texts]
        return [_prefilled(count) for count in counts]
    if body.top_logprobs_num:
        raise ConfigError("texts are scored without alternatives", param="top_logprobs_num")
    if isinstance(body.logprob_start_len, list):
        raise ConfigError("give one position for all texts", param="logprob_start_len")
    replies = []
    for choice in await _score_texts(backend, body.texts, namespace):
        reply = _prefilled(len(choice.tokens))
        start = max(0, body.logprob_start_len or 0)
        listed = _listed(body, choice.unconditional, choice)
        reply.meta_info.input_token_logprobs = listed[start:]
        reply.meta_info.output_token_logprobs = []
        replies.append(reply)
    return replies


def _scored(
    body: GenerateRequest,
    first: int,
    ids: Sequence[int],
    choices: Sequence[ScoredChoice],
    usage: Usage,
) -> GenerateReply:
    """`choices` are the row's tokens after `first`, once for each of the `ids` that may follow, or
    once without any. `first` has no value, as in SGLang."""
    choice = choices[0]
    size = len(choice.tokens) - bool(ids)
    reply = _prefilled(usage.prompt + size, min(usage.reused, usage.prompt))
    if not body.return_logprob:
        return reply
    if body.top_logprobs_num > 1:
        raise ConfigError("one alternative is known for prompts", param="top_logprobs_num")
    meta = reply.meta_info
    listed = _listed(body, choice.logprobs, choice)[:size]
    meta.input_token_logprobs = [[None, first, None], *listed]
    meta.output_token_logprobs = []
    best = [[[logprob, token, None]] for token, logprob in choice.best]
    if body.top_logprobs_num:
        meta.input_top_logprobs = [None, *best[:size]]
        meta.output_top_logprobs = best[size:]
    if ids:
        meta.output_token_ids_logprobs = [
            [_listed(body, one.logprobs, one)[-1] for one in choices],
        ]
    return reply


def _listed(
    body: GenerateRequest, logprobs: Sequence[float | None], choice: ScoredChoice
) -> list[list[Any]]:
    """[log-probability, token, text] for each token."""
    texts = choice.pieces if body.return_text_in_logprobs else (None,) * len(choice.tokens)
    return [list(one) for one in zip(logprobs, choice.tokens, texts, strict=True)]


def _prefilled(count: int, cached: int = 0) -> GenerateReply:
    reason = FinishReason(type="length", length=0)
    meta = MetaInfo(finish_reason=reason, prompt_tokens=count, cached_tokens=cached)
    return GenerateReply(text="", output_ids=[], meta_info=meta)


async def _score_texts(
    backend: Backend, texts: Sequence[str], namespace: str
) -> list[ScoredChoice]:
    """Per text its tokens and, as `unconditional`, their log-probabilities, the first's None."""
    _check(backend)
    session = await backend.open(_name(), namespace=namespace)
    try:
        scored = await session.score(texts, empty_context=True)
    finally:
        await session.close()
    return list(scored.choices)


async def _score_rows(
    backend: Backend,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    asked: Sequence[Sequence[int]],
    namespace: str,
) -> list[tuple[list[ScoredChoice], Usage]]:
    """Per row of ids, the scores of its tokens after the one at its start, and what they cost:
    once for each token that is `asked` for after the row, at its end, or once as it is.

    Rows with the same tokens up to there are scored together. Raises `Unsupported` for ids that
    the model does not have, or an engine without scores.
    """
    _check(backend)
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        groups.setdefault(tuple(row[: start + 1]), []).append(i)
    found: dict[int, tuple[list[ScoredChoice], Usage]] = {}
    for prefix, members in groups.items():
        parts = [
            [(*rows[i][len(prefix) :], token) for token in asked[i]] or [(*rows[i][len(prefix) :],)]
            for i in members
        ]
        snapshot = Snapshot(backend.capabilities.fingerprint, prefix, namespace=namespace)
        session = await backend.restore(snapshot, _name())
        try:
            scored = await session.score([choice for part in parts for choice in part])
        finally:
            await session.close()
        choices = iter(scored.choices)
        found |= {
            i: ([next(choices) for _ in part], scored.usage)
            for i, part in zip(members, parts, strict=True)
        }
    return [found[i] for i in range(len(rows))]


def _check(backend: Backend) -> None:
    if not backend.capabilities.score:
        raise Unsupported("this engine can't score prompts", param="return_logprob")


def _name() -> str:
    return f"score-{uuid.uuid4().hex[:12]}"
