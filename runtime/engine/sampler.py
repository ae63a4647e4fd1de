"""From logits to tokens: penalties, masks, temperature, truncation, and the draw.

What lives here: `Draw` (what one row asks for) and `sample`. What does not: where the uniform
numbers come from (`noise.py`) and what a constraint allows (`constrained.py`).

The order is that of Hugging Face and vLLM: penalties, then the mask, then temperature, then
top_k, top_p over what top_k left (renormalised), min_p relative to the likeliest token. Tokens
that tie with the last one kept are all kept, so the outcome does not depend on a sort's order.
The draw inverts the cumulative distribution in token order, in two steps: first the block of
tokens, then the token in the block. A row of a large vocabulary is read few times.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import torch

from phloem.programs.protocol import SamplingParams

__all__ = ["Draw", "sample"]

_GREEDY = 1e-5
"""Below this temperature only the likeliest token has a chance, and divisions overflow."""

_HEAD = 1024
"""Tokens sorted first for top_p; nearly always the nucleus lies among them."""

_BLOCK = 256


@dataclass(slots=True)
class Draw:
    """What one row of logits is to become.

    `allowed` [vocab] is False where a token must not be taken, `banned` names such tokens one
    by one; `output` counts the tokens generated so far, `seen` holds the prompt's tokens too
    (only filled where a penalty needs them); `uniform` lies in [0, 1).
    """

    params: SamplingParams
    uniform: float
    allowed: np.ndarray | None = None
    banned: Set[int] = frozenset()
    output: Mapping[int, int] = field(default_factory=dict)
    seen: Set[int] = frozenset()


def sample(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    """One token per row. `logits` float32 [rows, vocab] is changed in place."""
    for i, draw in enumerate(draws):
        _penalise(logits, i, draw)
        if draw.allowed is not None:
            barred = torch.from_numpy(~draw.allowed).to(logits.device)
            logits[i].masked_fill_(barred, -torch.inf)
        if draw.banned:
            logits[i, list(draw.banned)] = -torch.inf
    best, tokens = logits.max(dim=-1)
    drawn = [i for i, draw in enumerate(draws) if draw.params.temperature > _GREEDY]
    if len(drawn) == len(draws):
        tokens = _draw(logits, best, draws)
    elif drawn:
        index = torch.tensor(drawn, device=logits.device)
        tokens[index] = _draw(logits[index], best[index], [draws[i] for i in drawn])
    return [int(token) for token in tokens.tolist()]


def _penalise(logits: torch.Tensor, i: int, draw: Draw) -> None:
    """Frequency and presence penalties (OpenAI) and repetition penalty (Keskar et al. 2019)."""
    params = draw.params
    if params.repetition_penalty != 1.0 and (draw.seen or draw.output):
        ids = sorted(draw.seen | draw.output.keys())
        values = logits[i, ids]
        factor = params.repetition_penalty
        logits[i, ids] = torch.where(values > 0, values / factor, values * factor)
    if draw.output and (params.frequency_penalty or params.presence_penalty):
        ids = list(draw.output)
        counts = torch.tensor(list(draw.output.values()), device=logits.device)
        logits[i, ids] -= params.frequency_penalty * counts + params.presence_penalty


def _draw(logits: torch.Tensor, best: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """Sampled tokens, int64 [rows]; `best` [rows] are the largest logits. Changes `logits`."""
    heat = torch.tensor([draw.params.temperature for draw in draws], device=logits.device)
    weights = logits.sub_(best[:, None]).div_(heat[:, None]).exp_()
    least = _least_weights(weights, draws)
    if least is not None:
        weights.mul_(weights >= least[:, None])
    rows, vocab = weights.shape
    if vocab % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -vocab % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    below = blocks.sum(dim=-1).double().cumsum(dim=-1)
    uniform = torch.tensor([d.uniform for d in draws], dtype=below.dtype, device=below.device)
    target = (uniform * below[:, -1])[:, None]
    block = _find(below, target)
    before = torch.where(block > 0, below.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(rows, device=block.device), block[:, 0]].double().cumsum(dim=-1)
    return (block * _BLOCK + _find(inside, target - before))[:, 0]


def _find(below: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place whose cumulative weight exceeds the target, [rows, 1].

    Rounding may put the target on the total: the answer is then the last place with a weight.
    """
    last = torch.searchsorted(below, below[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(below, target, right=True), last)


def _least_weights(weights: torch.Tensor, draws: list[Draw]) -> torch.Tensor | None:
    """The least weight each row keeps, [rows]; None if all rows keep everything.

    The likeliest token has weight 1, so min_p is such a bound as it stands.
    """
    least = [draw.params.min_p for draw in draws]
    cutting = [i for i, d in enumerate(draws) if d.params.top_k > 0 or d.params.top_p < 1]
    if cutting:
        rows = weights[torch.tensor(cutting, device=weights.device)]
        size = min(rows.shape[1], max(_HEAD, *(draws[i].params.top_k for i in cutting)))
        heads = rows.topk(size, dim=-1).values
        for i, row, head in zip(cutting, rows, heads, strict=True):
            least[i] = max(least[i], _least(row, head, draws[i].params))
    if not any(least):
        return None
    return torch.tensor(least, device=weights.device)


def _least(row: torch.Tensor, head: torch.Tensor, params: SamplingParams) -> float:
    """The least weight top_k and top_p keep; `head` are the largest weights, descending."""
    total = None
    if params.top_k > 0:
        head = head[: params.top_k]
        total = float(head.sum(dtype=torch.float64))
    if params.top_p >= 1:
        return float(head[-1])
    if total is None:
        total = float(row.sum(dtype=torch.float64))
    mass = head.double().cumsum(dim=0)
    if float(mass[-1]) < params.top_p * total:
        head = row.sort(descending=True).values
        mass = head.double().cumsum(dim=0)
    at = int(torch.searchsorted(mass, params.top_p * total))
    return float(head[min(at, len(head) - 1)])
