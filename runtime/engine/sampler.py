"""From logits to tokens: penalties, masks, temperature, truncation, and the draw.

What lives here: `Draw` (what one row asks for), `sample`, and `Likeliest`, which answers most
greedy draws; `NO_TOKEN`, and `no_numbers`, the error that it means. What does not: where the
uniform numbers come from (`noise.py`) and what a constraint allows (`constrained.py`).

The order is that of Hugging Face and vLLM: penalties, then the mask, then temperature, then
top_k, top_p over what top_k left (renormalised), min_p relative to the likeliest token. Tokens
that tie with the last one kept are all kept, so the outcome does not depend on a sort's order.
A row with a NaN gives `NO_TOKEN`: others, drawn with it, are none the worse.
The draw inverts the cumulative distribution in token order, in two steps: first the block of
tokens, then the token in the block. A row of a large vocabulary is read few times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import torch

from phloem.errors import EngineError
from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.masks import allows, restrict

__all__ = ["NO_TOKEN", "Draw", "Likeliest", "no_numbers", "sample"]

NO_TOKEN = -1

_GREEDY = 1e-5
"""Below this temperature only the likeliest token has a chance, and divisions overflow."""

_FLOORS = (1e-3, 1e-6, 0.0)
"""Only weights above the first are sorted for top_k and top_p, if enough lie there."""

_BLOCK = 256


@dataclass(slots=True)
class Draw:
    """What one row of logits is to become.

    `allowed` is the mask (`masks.py`) of the tokens that may be taken, None: all may; `output`
    counts the tokens generated so far, `seen` holds the prompt's tokens too
    (only filled where a penalty needs them); `uniform` lies in [0, 1).
    """

    params: SamplingParams
    uniform: float
    allowed: np.ndarray | None = None
    output: Mapping[int, int] = field(default_factory=dict)
    seen: Set[int] = frozenset()


def sample(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    """One token per row, or `NO_TOKEN`. `logits` float32 [rows, vocab] is changed in place."""
    for i, draw in enumerate(draws):
        _penalise(logits, i, draw)
        if draw.allowed is not None:
            restrict(logits[i], draw.allowed)
    drawn = [i for i, draw in enumerate(draws) if draw.params.temperature > _GREEDY]
    if not drawn:
        return _best(logits)
    if len(drawn) == len(draws):
        return _draw(logits, draws)
    tokens = _best(logits)
    rows = logits[torch.tensor(drawn, device=logits.device)]
    for i, token in zip(drawn, _draw(rows, [draws[i] for i in drawn]), strict=True):
        tokens[i] = token
    return tokens


def no_numbers() -> EngineError:
    """What a step fails with whose row has no token."""
    return EngineError(
        "the model's logits are no numbers (NaN)",
        hint="its weights are damaged, or too large for their format: try dtype='float32'",
    )


class Likeliest:
    """The likeliest token of each row of `logits` [rows, vocab], found for all rows at once, unless
    it is known (`tokens`, which may lie outside of the vocabulary).

    If it is allowed it is the likeliest of those that are, so a greedy draw needs no mask put on
    the row.
    """

    def __init__(self, logits: torch.Tensor, tokens: list[int] | None = None) -> None:
        self._logits = logits
        self._tokens = tokens

    def of(self, row: int, draw: Draw) -> int | None:
        """What the draw gives in that row; None if that takes `sample`."""
        params = draw.params
        if params.temperature > _GREEDY or params.repetition_penalty != 1.0:
            return None
        if params.frequency_penalty or params.presence_penalty:
            return None
        if self._tokens is None:
            self._tokens = _best(self._logits)
        token = self._tokens[row]
        if token >= self._logits.shape[-1]:
            return None
        if draw.allowed is None or token == NO_TOKEN or allows(draw.allowed, token):
            return token
        return None


def _best(logits: torch.Tensor) -> list[int]:
    """The likeliest token of each row; of equals the first."""
    if logits.device.type == "cpu":  # numpy's search is several times faster than torch's
        rows = logits.numpy()
        best = enumerate(rows.argmax(axis=-1).tolist())  # a NaN, if there is one
        return [NO_TOKEN if math.isnan(rows.item(row, token)) else token for row, token in best]
    most, places = logits.max(dim=-1)
    return [int(token) for token in torch.where(most.isnan(), NO_TOKEN, places).tolist()]


def _penalise(logits: torch.Tensor, i: int, draw: Draw) -> None:
    """Frequency and presence penalties (OpenAI) and repetition penalty (Keskar et al. 2019)."""
    params = draw.params
    if params.repetition_penalty != 1.0 and (draw.seen or draw.output):
        ids = sorted(draw.seen | draw.output.keys())
        values = logits[i, ids]
        factor = params.repetition_penalty
        changed = torch.where(values > 0, values / factor, values * factor)
        # A division by next to nothing must not come to infinity: nothing could be drawn.
        most = torch.finfo(changed.dtype).max
        logits[i, ids] = changed.clamp(-most, most)
    if draw.output and (params.frequency_penalty or params.presence_penalty):
        ids = list(draw.output)
        counts = torch.tensor(list(draw.output.values()), device=logits.device)
        logits[i, ids] -= params.frequency_penalty * counts + params.presence_penalty


def _draw(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    """Sampled tokens of all rows. Changes `logits`."""
    most = logits.amax(dim=-1, keepdim=True)
    lost = most.isnan()[:, 0].nonzero()[:, 0].tolist()
    if lost:
        logits[lost] = most[lost] = 0.0
    weights = logits.sub_(most)
    heat = [draw.params.temperature for draw in draws]
    if any(value != 1 for value in heat):
        weights.div_(torch.tensor(heat, device=weights.device)[:, None])
    weights.exp_()
    cut = [i for i, draw in enumerate(draws) if _cuts(draw.params)]
    whole = [i for i, draw in enumerate(draws) if not _cuts(draw.params)]
    tokens = [0] * len(draws)
    if whole:
        rows = weights[torch.tensor(whole, device=weights.device)] if cut else weights
        found = _invert(rows, [draws[i].uniform for i in whole])
        for i, token in zip(whole, found, strict=True):
            tokens[i] = token
    if cut:
        host = weights.cpu().numpy()
        for i in cut:
            tokens[i] = _draw_among(host[i], draws[i])
    for i in lost:
        tokens[i] = NO_TOKEN
    return tokens


def _cuts(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _invert(weights: torch.Tensor, uniforms: list[float]) -> list[int]:
    """The token of each row where the cumulative weight exceeds its uniform share of all."""
    rows, vocab = weights.shape
    if vocab % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -vocab % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    below = blocks.sum(dim=-1).double().cumsum(dim=-1)
    uniform = torch.tensor(uniforms, dtype=below.dtype, device=below.device)
    target = (uniform * below[:, -1])[:, None]
    block = _find(below, target)
    before = torch.where(block > 0, below.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(rows, device=block.device), block[:, 0]].double().cumsum(dim=-1)
    found = (block * _BLOCK + _find(inside, target - before))[:, 0]
    return [int(token) for token in found.tolist()]


def _find(below: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place whose cumulative weight exceeds the target, [rows, 1].

    Rounding may put the target on the total: the answer is then the last place with a weight.
    """
    last = torch.searchsorted(below, below[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(below, target, right=True), last)


def _draw_among(weights: np.ndarray, draw: Draw) -> int:
    """The token of one row [vocab] of which only the larger weights are kept."""
    kept = np.flatnonzero(weights >= _least(weights, draw.params))
    below = np.cumsum(weights[kept], dtype=np.float64)
    at = np.searchsorted(below, draw.uniform * below[-1], side="right")
    return int(kept[min(at, np.searchsorted(below, below[-1]))])


def _least(weights: np.ndarray, params: SamplingParams) -> float:
    """The least weight that top_k, top_p and min_p keep.

    The likeliest token has weight 1, so min_p is such a bound as it stands.
    """
    if params.top_k <= 0 and params.top_p >= 1:
        return params.min_p
    for floor in _FLOORS:
        head = weights[weights > floor]
        if len(head) < params.top_k and floor > 0:
            continue
        total = float(weights.sum())
        if 0 < params.top_k < len(head):
            head = np.partition(head, len(head) - params.top_k)[-params.top_k :]
        head = np.sort(head)[::-1]
        if params.top_p >= 1:
            break
        mass = np.cumsum(head, dtype=np.float64)
        if params.top_k > 0:
            total = float(mass[-1])
        if mass[-1] >= params.top_p * total or floor == 0:
            at = int(np.searchsorted(mass, params.top_p * total))
            head = head[: at + 1]
            break
    return max(params.min_p, float(head[-1]))
