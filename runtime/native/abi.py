"""The C interface of the compiled library, mirrored for ctypes.

What lives here: the structures and function types of `csrc/model.h` and `csrc/api.cpp`, field by
field, and `Library`. What does not: compiling (`build.py`) and the decoder (`decoder.py`).
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_void_p,
)
from pathlib import Path
from typing import ClassVar

__all__ = ["BF16", "BLOCK", "Q4", "Q8", "Batch", "Layer", "Library", "Matrix", "ModelConfig"]

Q4, Q8, BF16 = 1, 2, 3
"""Weight formats; 0 means there is no matrix."""

BLOCK = 32
"""Every matrix has a multiple of so many inputs."""


class Matrix(Structure):
    """A packed weight matrix."""

    _fields_: ClassVar = [
        ("format", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    ]


class Layer(Structure):
    """One layer's norms and matrices."""

    _fields_: ClassVar = [
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
    ]


class ModelConfig(Structure):
    """Sizes, and the weights outside the layers."""

    _fields_: ClassVar = [
        *(
            (name, c_int32)
            for name in (
                "layers",
                "hidden",
                "heads",
                "kv_heads",
                "head_dim",
                "intermediate",
                "vocab",
                "rotary_dim",
            )
        ),
        ("norm_epsilon", c_float),
        ("rope_factor", c_float),
        ("attention_scale", c_float),
        ("window", c_int32),
        ("inverse_frequencies", c_void_p),
        ("final_norm", c_void_p),
        ("embedding", Matrix),
        ("head", Matrix),
    ]


class Batch(Structure):
    """One forward pass; pointers to int64 unless said otherwise in `csrc/model.h`."""

    _fields_: ClassVar = [
        *(
            (name, c_int64)
            for name in ("rows", "seqs", "max_pages", "wanted", "page_size", "pool_pages")
        ),
        *(
            (name, c_void_p)
            for name in (
                "tokens",
                "positions",
                "slots",
                "query_starts",
                "context_lens",
                "pages",
                "logit_rows",
                "keys",
                "values",
                "logits",
                "likeliest",
            )
        ),
    ]


class Library:
    """The functions of a compiled library at `path`. Raises `OSError` if it can't be loaded."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._problem = library.phloem_problem
        self._problem.restype = c_char_p
        self._sets = library.phloem_instruction_sets
        self._sets.restype = None
        self.packed_bytes = library.phloem_packed_bytes
        self.packed_bytes.argtypes = [c_int32, c_int64, c_int64]
        self.packed_bytes.restype = c_int64
        self.pack_q4 = library.phloem_pack_q4
        self.pack_q4.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p]
        self.pack_q4.restype = None
        self.pack_q8 = library.phloem_pack_q8
        self.pack_q8.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_void_p]
        self.pack_q8.restype = None
        self.pack_bf16 = library.phloem_pack_bf16
        self.pack_bf16.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
        self.pack_bf16.restype = None
        self.decoder_new = library.phloem_decoder_new
        self.decoder_new.argtypes = [POINTER(ModelConfig), POINTER(Layer), c_char_p, c_int32]
        self.decoder_new.restype = c_void_p
        self.decoder_free = library.phloem_decoder_free
        self.decoder_free.argtypes = [c_void_p]
        self.decoder_free.restype = None
        self.decoder_times = library.phloem_decoder_times
        self.decoder_times.argtypes = [c_void_p, POINTER(c_double)]
        self.decoder_times.restype = None
        self.forward = library.phloem_forward
        self.forward.argtypes = [c_void_p, POINTER(Batch)]
        self.forward.restype = c_int32

    def problem(self) -> str:
        """What went wrong in this thread's last failed call."""
        return str(self._problem().decode())

    def instruction_sets(self) -> list[str]:
        """What this machine runs, best first."""
        buffer = ctypes.create_string_buffer(256)
        self._sets(buffer, c_int64(len(buffer)))
        return buffer.value.decode().split()
