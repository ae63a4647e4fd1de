"""`LoadedModel`: a model ready to run, as the engine receives it.

What lives here: the record. What does not: how it is made (`load.py` from files, `tiny.py` from
nothing).
"""

from __future__ import annotations

from dataclasses import dataclass

from phloem.runtime.model.batch import Decoder
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.text_side import ModelText

__all__ = ["LoadedModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(ModelText):
    """A decoder with the text side of its model. Immutable; shared by all sessions.

    `fingerprint` identifies weights and tokenizer; `dtype` names how the weights are held
    ("float32", "bfloat16", "int8", "int4").
    """

    fingerprint: str
    config: DecoderConfig
    decoder: Decoder
    dtype: str
