"""`LoadedModel`: a model ready to run, as the engine receives it.

What lives here: the record. What does not: how it is made (`load.py` from files, `tiny.py` from
nothing).
"""

from __future__ import annotations

from dataclasses import dataclass

from phloem.errors import Unsupported
from phloem.programs.protocol import ChatFormat
from phloem.runtime.model.batch import Decoder
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.tokenizer import Tokenizer

__all__ = ["LoadedModel"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with its tokenizer and chat format. Immutable; shared by all sessions.

    `fingerprint` identifies weights and tokenizer; `dtype` names how the weights are held
    ("float32", "bfloat16", "int8", "int4"). `eos_ids` end a generation.
    """

    name: str
    fingerprint: str
    config: DecoderConfig
    decoder: Decoder
    tokenizer: Tokenizer
    dtype: str
    eos_ids: frozenset[int]
    chat_format: ChatFormat | None
    chat_problem: str = "the model has no chat template"

    @property
    def chat(self) -> ChatFormat:
        """The chat format. Raises `Unsupported` if the model has none that can be used."""
        if self.chat_format is None:
            raise Unsupported(
                f"{self.name}: {self.chat_problem}",
                hint="write the prompt as plain text, or use an instruct model",
            )
        return self.chat_format
