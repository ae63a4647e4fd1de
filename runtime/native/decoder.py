"""`NativeDecoder`: a `Decoder` whose whole forward pass is one call into compiled code.

What lives here: the decoder, and `native_decoder`, which makes one where it can. What does not:
compiling (`build.py`), packing weights (`packing.py`) and the arithmetic (`csrc/`).

A row's logits do not depend on what else is in the batch, nor on how a prompt was cut into
chunks: every sum runs in one fixed order. So greedy text is the same alone and in a batch, with
drafts and without.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from typing import TypeAlias

import torch

from phloem.errors import ConfigError, EngineError
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.convert import Tensors
from phloem.runtime.native.abi import Batch, Library
from phloem.runtime.native.build import NativeUnavailable, load_library
from phloem.runtime.native.packing import PackedModel, unsupported

__all__ = ["NativeDecoder", "native_decoder"]

logger = logging.getLogger(__name__)

Addresses: TypeAlias = "ctypes.Array[ctypes.c_void_p]"

ISA_VARIABLE = "PHLOEM_NATIVE_ISA"
"""Environment variable that picks an instruction set instead of the best one."""


def native_decoder(
    config: DecoderConfig, tensors: Tensors, threads: int | None = None
) -> NativeDecoder | None:
    """The native decoder over converted `tensors`, or None where torch has to do it.

    None is for a machine without a compiler or with an old CPU, and for weights in float32 or a
    shape the kernels lack; the reason is logged once. `threads` defaults to torch's own number.
    Raises `ConfigError` if the instruction set asked for by `PHLOEM_NATIVE_ISA` is not there.
    """
    reason = unsupported(config, tensors)
    if reason is None:
        try:
            return NativeDecoder(load_library(), config, tensors, threads)
        except NativeUnavailable as error:
            reason = str(error)
    logger.info("the native decoder is not used: %s", reason)
    return None


class NativeDecoder:
    """A `Decoder` (see `model/batch.py`) on the CPU, with KV in bfloat16."""

    def __init__(
        self,
        library: Library,
        config: DecoderConfig,
        tensors: Tensors,
        threads: int | None = None,
        instruction_set: str | None = None,
    ) -> None:
        self.config = config
        self.device = torch.device("cpu")
        """Where weights and KV live."""
        self.instruction_set = _instruction_set(library, instruction_set)
        self._library = library
        self._model = PackedModel(library, config, tensors)
        self._handle = library.decoder_new(
            self._model.config,
            self._model.layers,
            self.instruction_set.encode(),
            threads or torch.get_num_threads(),
        )
        if not self._handle:
            raise EngineError(
                f"the native decoder did not start: {library.problem()}",
                hint="set PHLOEM_NATIVE=0 to use torch",
            )
        weakref.finalize(self, library.decoder_free, self._handle)
        self._layers: weakref.WeakKeyDictionary[KVStorage, tuple[Addresses, Addresses]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.vocab_size

    @property
    def max_positions(self) -> int:
        """Longest sequence, in tokens."""
        return self.config.max_positions

    @property
    def dtype(self) -> torch.dtype:
        """Type of the KV."""
        return torch.bfloat16

    def new_kv(self, pages: int, page_size: int) -> KVStorage:
        """Zeroed storage for `pages` pages of `page_size` tokens."""
        shape = (pages, page_size, self.config.kv_heads, self.config.head_dim)
        return KVStorage.zeros(self.config.layers, shape, self.dtype, self.device)

    def kv_bytes_per_token(self) -> int:
        """2 * layers * kv_heads * head_dim * bytes of an element."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """Write the rows' KV, fill `batch.likeliest`, and return float32 logits
        [wanted, vocab_size].

        Raises `ValueError` for a batch that contradicts itself or leaves the pool (nothing is
        written then), and `MemoryError` if scratch memory runs out.
        """
        rows, wanted = batch.tokens.shape[0], batch.logit_rows.shape[0]
        logits = torch.empty(wanted, self.config.vocab_size)
        likeliest = (ctypes.c_int64 * wanted)()
        tokens, positions, slots, pages, logit_rows = (
            _plain(batch.tokens),
            _plain(batch.positions),
            _plain(batch.slots),
            _plain(batch.pages),
            _plain(batch.logit_rows),
        )
        starts = (ctypes.c_int64 * len(batch.query_starts))(*batch.query_starts)
        contexts = (ctypes.c_int64 * len(batch.context_lens))(*batch.context_lens)
        keys, values = self._layers_of(kv)
        status = self._library.forward(
            self._handle,
            Batch(
                rows=rows,
                seqs=len(batch.context_lens),
                max_pages=batch.pages.shape[1],
                wanted=wanted,
                page_size=kv.page_size,
                pool_pages=kv.keys[0].shape[0],
                tokens=tokens.data_ptr(),
                positions=positions.data_ptr(),
                slots=slots.data_ptr(),
                query_starts=ctypes.addressof(starts),
                context_lens=ctypes.addressof(contexts),
                pages=pages.data_ptr(),
                logit_rows=logit_rows.data_ptr(),
                keys=ctypes.addressof(keys),
                values=ctypes.addressof(values),
                logits=logits.data_ptr(),
                likeliest=ctypes.addressof(likeliest),
            ),
        )
        if status == 1:
            raise ValueError(f"bad batch: {self._library.problem()}")
        if status != 0:
            raise MemoryError(f"no memory for a forward pass of {rows} rows")
        batch.likeliest = likeliest[:]
        return logits

    def _layers_of(self, kv: KVStorage) -> tuple[Addresses, Addresses]:
        """Where each layer's keys and values lie; looked up once, since they never move."""
        found = self._layers.get(kv)
        if found is None:
            found = self._layers[kv] = _addresses(kv.keys), _addresses(kv.values)
        return found

    def seconds(self) -> dict[str, float]:
        """Wall time of all passes so far: in "matrices" (products, and what is done to their
        results piece by piece), in "attention", and in "total"."""
        times = (ctypes.c_double * 3)()
        self._library.decoder_times(self._handle, times)
        return dict(zip(("matrices", "attention", "total"), times, strict=True))


def _plain(numbers: torch.Tensor) -> torch.Tensor:
    if numbers.dtype is torch.int64 and numbers.is_contiguous():  # calls that do nothing cost too
        return numbers
    return numbers.to(torch.int64).contiguous()


def _addresses(pool: list[torch.Tensor]) -> Addresses:
    return (ctypes.c_void_p * len(pool))(*(layer.data_ptr() for layer in pool))


def _instruction_set(library: Library, asked: str | None) -> str:
    asked = asked or os.environ.get(ISA_VARIABLE)
    known = library.instruction_sets()
    if asked is None and known:
        return known[0]
    if asked not in known:
        raise ConfigError(
            f"this CPU has no instruction set {asked!r} of the native decoder",
            hint=f"it has {', '.join(known) or 'none'}: unset {ISA_VARIABLE}",
        )
    return asked
