"""How much of a model fits on GPUs: weights, KV, batch, and how to split it.

What lives here: `Shape`, a model in the numbers that memory depends on, and `plan`, the
arithmetic. What does not: reading shapes (`plan_shapes.py`), and measuring anything.

KV per token = 2 x layers x KV heads x head dimension x bytes: keys and values, once per KV head
(grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245). What a server keeps back for
activations and CUDA graphs is SGLang's own estimate (0.5.23, srt/arg_groups): 512 MiB, 1.5 MiB per
token of a prefill chunk, 128 MiB per GPU of the tensor-parallel group, 2 MiB per request of the
largest decode graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from phloem.errors import ConfigError

__all__ = ["GIB", "Choice", "Plan", "Shape", "plan"]

GIB = 2**30
_MIB = 2**20
_CHUNKS = ((35, 2048), (60, 4096), (160, 8192))
"""Tokens of a prefill chunk on GPUs of less than so many GiB; SGLang's defaults."""
_LARGEST_CHUNK = 16_384
_TP = (1, 2, 4, 8, 16)
_WIDEST = 64
"""Bits of the widest number."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. `weight_bytes` is that of the weights as they are stored, or None."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    tied: bool
    max_context: int
    weight_bytes: int | None = None

    @property
    def parameters(self) -> int:
        """Weights of a Llama-like decoder: embedding and head, attention, gated MLP, norms."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        heads = 1 if self.tied else 2
        return heads * self.vocab * self.hidden + self.layers * layer + self.hidden

    def kv_bytes(self, value_bytes: float, tp: int = 1) -> int:
        """KV of one token on each of `tp` GPUs; KV heads that can't be split are repeated."""
        heads = max(1, self.kv_heads // tp)
        return int(2 * self.layers * heads * self.head_dim * value_bytes)

    def splits(self, tp: int) -> bool:
        """Whether the heads divide over `tp` GPUs."""
        if self.heads % tp:
            return False
        return self.kv_heads % tp == 0 or tp % self.kv_heads == 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One tensor-parallel size. Bytes are per GPU; `batch` counts requests of the whole context.

    `mem_fraction_static` is what to give the server: the share of a GPU's memory that weights and
    KV take. `fits` says whether the wanted concurrency does.
    """

    tp: int
    weights: int
    kv_per_token: int
    reserved: int
    kv_tokens: int
    batch: int
    mem_fraction_static: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices, and the smallest that fits, if one does."""

    model: str
    parameters: int
    weights: int
    kv_per_token: int
    gpu: int
    context: int
    concurrency: int
    choices: tuple[Choice, ...]

    @property
    def best(self) -> Choice | None:
        """The fewest GPUs that hold the wanted requests."""
        return next((choice for choice in self.choices if choice.fits), None)


def plan(
    shape: Shape,
    *,
    gpu: int,
    context: int,
    concurrency: int,
    weight_bits: float | None = None,
    kv_bits: float = 16,
) -> Plan:
    """What `concurrency` requests of `context` tokens need on GPUs of `gpu` bytes.

    `weight_bits` None: as the weights are stored, else 16. Raises `ConfigError` for numbers that
    make no sense.
    """
    bits = [kv_bits] if weight_bits is None else [kv_bits, weight_bits]
    if min(gpu, context, concurrency) <= 0 or not all(0 < one <= _WIDEST for one in bits):
        raise ConfigError(
            f"memory, context, concurrency and bits must be more than 0, bits at most {_WIDEST}"
        )
    if context > shape.max_context:
        raise ConfigError(
            f"{shape.name} takes {shape.max_context} tokens, not {context}",
            hint="lower --context",
        )
    if weight_bits is None:
        weights = shape.weight_bytes or 2 * shape.parameters
    else:
        weights = int(shape.parameters * weight_bits / 8)
    choices = tuple(
        _choice(shape, tp, gpu, context, concurrency, weights, kv_bits / 8)
        for tp in _TP
        if shape.splits(tp)
    )
    return Plan(
        model=shape.name,
        parameters=shape.parameters,
        weights=weights,
        kv_per_token=shape.kv_bytes(kv_bits / 8),
        gpu=gpu,
        context=context,
        concurrency=concurrency,
        choices=choices,
    )


def _choice(
    shape: Shape,
    tp: int,
    gpu: int,
    context: int,
    concurrency: int,
    weights: int,
    value_bytes: float,
) -> Choice:
    own = -(-weights // tp)
    per_token = shape.kv_bytes(value_bytes, tp)
    reserved = reserve(gpu, tp, concurrency)
    left = gpu - reserved - own
    tokens = max(0, left // per_token)
    return Choice(
        tp=tp,
        weights=own,
        kv_per_token=per_token,
        reserved=reserved,
        kv_tokens=tokens,
        batch=tokens // context,
        mem_fraction_static=max(0.0, int((gpu - reserved) / gpu * 1000) / 1000),
        fits=tokens >= context * concurrency,
    )


def reserve(gpu: int, tp: int, concurrency: int) -> int:
    """Bytes kept free of weights and KV on each GPU; see the top of the page."""
    chunk = next((tokens for size, tokens in _CHUNKS if gpu < size * GIB), _LARGEST_CHUNK)
    return (512 + 128 * tp + 2 * concurrency) * _MIB + int(1.5 * chunk * _MIB)
