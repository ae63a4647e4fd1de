"""From logits to tokens: penalties, masks, temperature, truncation, and the draw.

What lives here: `Draw` (what one row asks for) and `sample`. What does not: where the uniform
numbers come from (`noise.py`) and what a constraint allows (`constrained.py`).

The order is that of Hugging Face and vLLM: penalties, then the mask, then temperature, then
top_k, top_p over what top_k left (renormalised), min_p relative to the likeliest token. Tokens
that tie with the last one kept are all kept, so the outcome does not depend on a sort's order.
The draw inverts the cumulative distribution in token order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from phloem.programs.protocol import SamplingParams

__all__ = ["Draw", "sample"]

_GREEDY = 1e-5
"""Below this temperature only the likeliest token has a chance, and divisions overflow."""

_HEAD = 1024
"""Tokens sorted first for top_p; nearly always the nucleus lies among them."""


@dataclass(slots=True)
class Draw:
    """What one row of logits is to become.

    `allowed` [vocab] is False where a token must not be taken; `output` counts the tokens
    generated so far, `seen` holds the prompt's tokens too (only filled where a penalty needs
    them); `uniform` lies in [0, 1).
    """

    params: SamplingParams
    uniform: float
    allowed: np.ndarray | None = None
    output: Mapping[int, int] = field(default_factory=dict)
    seen: frozenset[int] | set[int] = frozenset()


def sample(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    """One token per row. `logits` float32 [rows, vocab] is changed in place."""
    for row, draw in zip(logits, draws, strict=True):
        _penalise(row, draw)
        if draw.allowed is not None:
            row.masked_fill_(~torch.from_numpy(draw.allowed).to(row.device), -torch.inf)
    tokens = logits.argmax(dim=-1)
    drawn = [i for i, draw in enumerate(draws) if draw.params.temperature > _GREEDY]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        tokens[index] = _draw(logits[index], [draws[i] for i in drawn])
    return [int(token) for token in tokens.tolist()]


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Frequency and presence penalties (OpenAI) and repetition penalty (Keskar et al. 2019)."""
    params = draw.params
    if params.repetition_penalty != 1.0 and (draw.seen or draw.output):
        ids = torch.tensor(sorted(draw.seen | draw.output.keys()), device=row.device)
        values = row[ids]
        factor = params.repetition_penalty
        row[ids] = torch.where(values > 0, values / factor, values * factor)
    if draw.output and (params.frequency_penalty or params.presence_penalty):
        ids = torch.tensor(list(draw.output), device=row.device)
        counts = torch.tensor(list(draw.output.values()), device=row.device, dtype=row.dtype)
        row[ids] -= params.frequency_penalty * counts + params.presence_penalty


def _draw(logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """Sampled tokens, int64 [rows]."""
    heat = torch.tensor([draw.params.temperature for draw in draws], device=logits.device)
    probs = torch.softmax(logits / heat[:, None], dim=-1)
    floor = [draw.params.min_p for draw in draws]
    if any(floor):
        least = probs.amax(dim=-1) * torch.tensor(floor, device=probs.device)
    else:
        least = torch.zeros(len(draws), device=probs.device)
    if any(draw.params.top_k > 0 or draw.params.top_p < 1 for draw in draws):
        least = torch.maximum(least, _truncation(probs, draws))
    probs = torch.where(probs >= least[:, None], probs, 0.0)
    below = probs.double().cumsum(dim=-1)
    uniform = torch.tensor([draw.uniform for draw in draws], dtype=below.dtype, device=below.device)
    target = (uniform * below[:, -1])[:, None]
    token = torch.searchsorted(below, target, right=True)[:, 0]
    # Rounding may put the target on the total: the answer is then the last possible token.
    last = probs.shape[1] - 1 - (probs.flip(1) > 0).int().argmax(dim=1)
    return torch.minimum(token, last)


def _truncation(probs: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """The least probability each row keeps by its top_k and top_p, [rows]."""
    vocab = probs.shape[1]
    size = min(vocab, max(_HEAD, *(draw.params.top_k for draw in draws)))
    head = probs.topk(size, dim=-1).values
    least = [_least(row, draw.params) for row, draw in zip(head, draws, strict=True)]
    for i, found in enumerate(least):
        if found is None:
            least[i] = _least(probs[i].sort(descending=True).values, draws[i].params)
    return torch.tensor([value or 0.0 for value in least], device=probs.device)


def _least(ordered: torch.Tensor, params: SamplingParams) -> float | None:
    """The least probability kept, from probabilities in descending order; None: not enough."""
    kept = ordered[: params.top_k] if params.top_k > 0 else ordered
    if params.top_p >= 1:
        return float(kept[-1]) if params.top_k > 0 else 0.0
    mass = kept.double().cumsum(dim=0)
    total = float(mass[-1]) if params.top_k > 0 else 1.0
    at = int(torch.searchsorted(mass, params.top_p * total))
    if at < len(kept):
        return float(kept[at])
    return 0.0 if params.top_k > 0 else None
