"""Random models, batches with cached prefixes, and the torch decoder to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from phloem.runtime.model.batch import Decoder, ForwardBatch, KVStorage
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.convert import Tensors, assemble
from phloem.runtime.model.linear import GROUP, Blocks4, Linear
from phloem.runtime.native.packing import quantize_blocks

SMALL = DecoderConfig(
    family="llama",
    vocab_size=200,
    hidden_size=96,
    mlp_size=160,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    max_positions=2048,
)


class RandomWeights:
    """The tensors of a model, drawn when asked for, equal for equal names; Q4_1-like blocks."""

    def __init__(self, config: DecoderConfig, *, bias: bool = False) -> None:
        self.config = config
        self._bias = bias

    def __contains__(self, name: str) -> bool:
        return self._bias and name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))

    def _shape(self, name: str) -> tuple[int, ...]:
        c = self.config
        heads, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        parts = {
            "q_proj": (heads, c.hidden_size), "k_proj": (kv, c.hidden_size),
            "v_proj": (kv, c.hidden_size), "o_proj": (c.hidden_size, heads),
            "gate_proj": (c.mlp_size, c.hidden_size), "up_proj": (c.mlp_size, c.hidden_size),
            "down_proj": (c.hidden_size, c.mlp_size), "embed_tokens": (c.vocab_size, c.hidden_size),
            "lm_head": (c.vocab_size, c.hidden_size), "q_norm": (c.head_dim,),
            "k_norm": (c.head_dim,),
        }  # fmt: skip
        for part, shape in parts.items():
            if part in name:
                return shape[:1] if name.endswith(".bias") else shape
        return (c.hidden_size,)

    def _draw(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))

    def tensor(self, name: str) -> torch.Tensor:
        blocks = self.blocks4(name)
        if blocks is not None:
            return blocks.dequantize()
        shape = self._shape(name)
        values = torch.randn(shape, generator=self._draw(name))
        return values * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.1 * values

    def blocks4(self, name: str) -> Blocks4 | None:
        if "_proj.weight" not in name:
            return None
        (outputs, inputs), draw = self._shape(name), self._draw(name)
        q = torch.randint(0, 16, (outputs, inputs), generator=draw, dtype=torch.uint8)
        scale = 0.1 + 0.3 * torch.rand(outputs, inputs // GROUP, generator=draw)
        scale = (scale * inputs**-0.5).half()
        return Blocks4.pack(q, scale, (-7.5 * scale.float()).half())


class Rounded:
    """A linear layer that rounds as the native decoder does.

    Its activations go to bfloat16, or to 8 bits in blocks; its last `values` outputs, which are
    stored as V, to bfloat16.
    """

    def __init__(self, linear: Linear, *, bytewise: bool, values: int = 0) -> None:
        self._linear = linear
        self._bytewise = bytewise
        self._values = values

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self._linear(in_blocks(x) if self._bytewise else x.bfloat16().float())
        plain = y.shape[1] - self._values
        return torch.cat((y[:, :plain], y[:, plain:].bfloat16().float()), dim=1)


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """`x` rounded to 8 bits in blocks of 32."""
    q, scale = quantize_blocks(x)
    return (q.view(x.shape[0], -1, GROUP).float() * scale[..., None]).view(x.shape)


def reference(config: DecoderConfig, tensors: Tensors) -> Decoder:
    """The torch decoder in float32 over the weights that `tensors` hold, activations rounded."""
    exact: Tensors = {}
    for name, tensor in tensors.items():
        stem = name.rpartition(".")[0]
        if name.endswith(".q4"):
            scale, minimum = tensors[f"{stem}.scale"], tensors[f"{stem}.minimum"]
            exact[f"{stem}.weight"] = Blocks4(tensor, scale, minimum).dequantize()
        elif name.endswith(".q8"):
            exact[f"{stem}.weight"] = tensor.float() * tensors[f"{stem}.scale"].float()[:, None]
        elif not name.endswith((".scale", ".minimum")):
            exact[name] = tensor.float()
    bytewise = any(name.endswith((".q4", ".q8")) for name in tensors)
    if bytewise:
        exact["embedding"] = in_blocks(exact["embedding"])
    decoder = assemble(config, exact, torch.device("cpu"))
    for layer in decoder._layers:
        values = config.kv_heads * config.head_dim
        layer.qkv = Rounded(layer.qkv, bytewise=bytewise, values=values)
        layer.output = Rounded(layer.output, bytewise=bytewise)
        layer.gate_up = Rounded(layer.gate_up, bytewise=bytewise)
        layer.down = Rounded(layer.down, bytewise=bytewise)
    decoder._head = Rounded(decoder._head, bytewise=bytewise and config.tied_head)
    return decoder


@dataclass
class Chunk:
    """New tokens of one sequence, and the logits wanted of them (default: the last row's)."""

    seq: int
    tokens: list[int]
    all_logits: bool = False


@dataclass
class Runner:
    """Feeds chunks of several sequences to a decoder, with pages dealt out in a mixed order."""

    decoder: Decoder
    page_size: int
    pages: int = 64
    lengths: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kv: KVStorage = self.decoder.new_kv(self.pages, self.page_size)
        self._free = torch.randperm(self.pages, generator=torch.Generator().manual_seed(3)).tolist()

    def batch(self, chunks: Sequence[Chunk]) -> ForwardBatch:
        """Give the chunks their slots; the sequences grow."""
        starts, contexts, positions, slots, wanted = [0], [], [], [], []
        for chunk in chunks:
            before = self.lengths.get(chunk.seq, 0)
            after = before + len(chunk.tokens)
            table = self.tables.setdefault(chunk.seq, [])
            while len(table) * self.page_size < after:
                table.append(self._free.pop())
            for position in range(before, after):
                positions.append(position)
                page = table[position // self.page_size]
                slots.append(page * self.page_size + position % self.page_size)
            rows = range(starts[-1], starts[-1] + len(chunk.tokens))
            wanted += list(rows) if chunk.all_logits else [rows[-1]]
            starts.append(rows.stop)
            contexts.append(after)
            self.lengths[chunk.seq] = after
        tables = [self.tables[chunk.seq] for chunk in chunks]
        width = max(map(len, tables))
        return ForwardBatch(
            tokens=torch.tensor([token for chunk in chunks for token in chunk.tokens]),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            query_starts=starts,
            context_lens=contexts,
            pages=torch.tensor([table + [0] * (width - len(table)) for table in tables]),
            logit_rows=torch.tensor(wanted),
        )

    def step(self, *chunks: Chunk) -> torch.Tensor:
        """One forward pass."""
        return self.decoder.forward(self.batch(chunks), self.kv)


def small(**changes: object) -> DecoderConfig:
    """`SMALL` with other numbers."""
    return replace(SMALL, **changes)  # type: ignore[arg-type]  # names are checked by replace


def tokens(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    draw = torch.Generator().manual_seed(seed)
    return [int(t) for t in torch.randint(0, SMALL.vocab_size, (count,), generator=draw)]
